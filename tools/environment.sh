#!/usr/bin/env bash
# Makes a virtual environment with tfdist, installed from this folder, and Horovod's wheel where there is a C++ compiler.
#
#   tools/environment.sh PYTHON FOLDER EXTRAS
set -euo pipefail
python=$1 folder=$2 extras=$3

case $extras in
    *addons*) newest=11 ;;
    *) newest=13 ;;
esac
"$python" - "$newest" <<'CHECK'
import sys
newest = int(sys.argv[1])
if not (3, 10) <= sys.version_info[:2] <= (3, newest):
    sys.exit(f"This stack needs Python 3.10 to 3.{newest}; this is {sys.version.split()[0]}. Use: make PYTHON=python3.11 ...")
CHECK

# Debian's python3 comes without ensurepip. Its package of pip's wheel can be fetched and unpacked without root.
make_without_ensurepip() {
    local work
    work=$(mktemp -d)
    (cd "$work" && apt-get download -qq python3-pip-whl && dpkg-deb -x python3-pip-whl*.deb .) > /dev/null 2>&1 || {
        echo "This Python has no venv: sudo apt-get install python3-venv" >&2
        exit 3
    }
    "$python" -m venv --without-pip "$folder"
    "$folder/bin/python" "$(echo "$work"/usr/share/python-wheels/pip-*.whl)/pip" install --quiet pip
    rm -rf "$work"
}

# A half-made environment is made again, a whole one brought up to date.
if [ ! -x "$folder/bin/pip" ]; then
    if "$python" -c 'import ensurepip' 2> /dev/null; then "$python" -m venv "$folder"; else make_without_ensurepip; fi
fi
pip=("$folder/bin/python" -m pip --disable-pip-version-check)
"${pip[@]}" install --quiet --upgrade pip 'setuptools>=77' wheel
"${pip[@]}" install --quiet -e ".[$extras,mpi,horovod]"

if command -v "${CXX:-g++}" > /dev/null; then
    "${pip[@]}" install --quiet 'cmake<4'
    wheel=$(docker/horovod_wheel.sh "$folder/bin/python")
    "${pip[@]}" install --quiet --no-deps "$wheel"
else
    echo "No C++ compiler (g++) on this machine: Horovod is left out; mpirun is there." >&2
fi
touch "$folder/ready"
