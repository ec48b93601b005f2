#!/usr/bin/env bash
# Runs the example on 2 processes with 2 devices each, by the first launcher that the environment has.
set -euo pipefail
bin=$(cd "$1/bin" && pwd)
export PATH="$bin:$PATH" TF_CPP_MIN_LOG_LEVEL=2
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

example=("$bin/python" examples/mnist.py --devices 2)
if command -v horovodrun > /dev/null && "$bin/python" -c 'import horovod.tensorflow' 2> /dev/null; then
    # Horovod marks each line with its rank; the example prints on rank 0 only.
    horovodrun --disable-cache -np 2 "${example[@]}" 2>&1 | sed -u -E 's/\[[0-9]+\]<std(out|err)>: ?//g'
elif "$bin/python" -c 'from mpi4py import MPI' 2> /dev/null; then
    echo "Horovod is not installed (it needs a C++ compiler): training over MPI instead." >&2
    exec mpirun --oversubscribe -np 2 "${example[@]}"
else
    echo "Neither Horovod nor MPI is installed: training in one process." >&2
    exec "${example[@]}"
fi
