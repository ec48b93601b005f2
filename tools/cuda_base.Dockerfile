# A stand-in for nvidia/cuda:*-devel, from PyPI: nvcc and NCCL with its headers, on a bare Debian. It builds Dockerfile.gpu, and is not for
# use: TensorFlow runs on CUDA 12, of which PyPI has no nvcc.
ARG BASE_IMAGE
FROM ${BASE_IMAGE}
SHELL ["/bin/bash", "-euo", "pipefail", "-c"]
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/wheels \
    && /opt/wheels/bin/pip install --no-cache-dir \
        'nvidia-cuda-nvcc==13.0.*' 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-runtime==13.0.*' 'nvidia-cuda-cccl==13.0.*' \
        'nvidia-nvvm==13.0.*' 'nvidia-nccl-cu13==2.*' \
    && packages=$(echo /opt/wheels/lib/python3*/site-packages/nvidia) \
    && ln -s "$packages/cu13" /usr/local/cuda \
    && ln -s lib "$packages/cu13/lib64" \
    && ln -s "$packages"/nccl/include/* /usr/include/ \
    && ln -s "$packages/nccl/lib/libnccl.so.2" /usr/lib/libnccl.so.2 \
    && ln -s libnccl.so.2 /usr/lib/libnccl.so \
    && for library in "$packages"/cu13/lib/lib*.so.13; do ln -s "$(basename "$library")" "${library%.13}"; done \
    && ldconfig
ENV PATH=/usr/local/cuda/bin:$PATH
