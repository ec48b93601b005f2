#!/usr/bin/env bash
# Builds Horovod's wheel for the TensorFlow of one Python environment, once, and prints the wheel's path.
#
#   docker/horovod_wheel.sh .venv/bin/python
#
# The wheel is kept in ${XDG_CACHE_HOME:-~/.cache}/tfdist, in a folder named by Horovod, Python and TensorFlow. The environment
# needs tensorflow, setuptools, wheel and cmake (all from PyPI); the machine needs a C++ compiler and make.
# In the environment: HOROVOD_VERSION; HOROVOD_GPU_OPERATIONS=NCCL makes a wheel for GPUs (its own folder).
set -euo pipefail

version=${HOROVOD_VERSION:-0.28.1}
python=$(command -v "$1")
bin=$(cd "$(dirname "$python")" && pwd)
python=$bin/$(basename "$python")
# CMake asks the first python on PATH where TensorFlow is, and the cmake of the environment must come before an older one.
export PATH="$bin:$PATH"

tensorflow=$("$python" -c 'from importlib.metadata import distributions as d
print(next(x.version for x in d() if x.metadata["Name"].replace("_", "-") in ("tensorflow", "tensorflow-cpu")))')
tag=$("$python" -c 'import sys, platform; print("cp%d%d-%s" % (*sys.version_info[:2], platform.machine()))')
cache=${XDG_CACHE_HOME:-$HOME/.cache}/tfdist/horovod-$version-tf$tensorflow-$tag${HOROVOD_GPU_OPERATIONS:+-$HOROVOD_GPU_OPERATIONS}

if ! compgen -G "$cache/*.whl" > /dev/null; then
    command -v "${CXX:-g++}" > /dev/null || { echo "horovod_wheel: no C++ compiler (g++) on this machine" >&2; exit 3; }
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    echo "Building Horovod $version for TensorFlow $tensorflow: about 3 minutes, once for this user" >&2
    "$python" -m pip download --quiet --no-deps --no-build-isolation --no-binary horovod --dest "$work" "horovod==$version" >&2
    tar -xzf "$work/horovod-$version.tar.gz" -C "$work"
    source=$work/horovod-$version/horovod/tensorflow
    case $tensorflow in
        2.[0-9].* | 2.1[0-5].*) ;;
        *)
            # TensorFlow 2.16 moved the XLA headers that this one file includes; only HOROVOD_ENABLE_XLA_OPS uses it.
            sed -i '/xla_mpi_ops\.cc/d' "$source/CMakeLists.txt"
            # It also no longer has a function that Horovod declares and calls for GPUs: the stream of a device, as CUDA knows it.
            cat >> "$source/mpi_ops.cc" << 'CODE'

#if HAVE_GPU
GpuStreamHandle stream_executor::gpu::AsGpuStreamValue(Stream* stream) {
  return static_cast<GpuStreamHandle>(stream->platform_specific_handle().stream);
}
#endif
CODE
            ;;
    esac
    HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1 \
        "$python" -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir "$work/wheel" "$work/horovod-$version" >&2
    mkdir -p "$cache"
    mv "$work"/wheel/horovod-*.whl "$cache/"
fi
ls "$cache"/*.whl
