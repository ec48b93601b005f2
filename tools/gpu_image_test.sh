#!/usr/bin/env bash
# Builds docker/Dockerfile.gpu on a machine without a GPU and without a container engine, and trains in it on the CPU.
#
#   tools/gpu_image_test.sh
#
# About 10 minutes and 20 GB. Says why and skips where it cannot be done. Its CUDA is a stand-in (tools/cuda_base.Dockerfile).
set -euo pipefail
cd "$(dirname "$0")/.."
base=$(tools/debian_base.sh) || { [ $? = 3 ] && exit 0 || exit 1; }

build() { buildah build --isolation chroot --format docker --layers --force-rm "$@"; }
build --build-arg "BASE_IMAGE=$base" -f tools/cuda_base.Dockerfile -t localhost/tfdist-test-cuda tools
build --build-arg BASE_IMAGE=localhost/tfdist-test-cuda --build-arg RUNTIME_IMAGE=localhost/tfdist-test-cuda \
    --build-arg NCCL_LINK=SHARED --build-arg CUDA_ARCHITECTURES=75,80,90 -f docker/Dockerfile.gpu -t localhost/tfdist-gpu .
echo "gpu-image-test passed: Horovod with NCCL was built, and two ranks trained on the CPU"
