#!/usr/bin/env bash
# Builds docker/Dockerfile without a container engine, on a bare Debian, trains inside, and lets two containers train as two hosts.
#
#   tools/image_test.sh [NAME]
#
# About 8 minutes. Says why and skips where it cannot be done. The image is kept as NAME, localhost/tfdist unless given.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-localhost/tfdist}

base=$(tools/debian_base.sh) || { [ $? = 3 ] && exit 0 || exit 1; }

buildah build --isolation chroot --format docker --layers --force-rm --build-arg "BASE_IMAGE=$base" \
    --build-arg "REVISION=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)" -f docker/Dockerfile -t "$name" .

container=$(buildah from "$name")
trap 'buildah rm "$container" > /dev/null' EXIT
echo "Training in the image, as $(buildah run --isolation chroot "$container" -- id -un):"
output=$(buildah run --isolation chroot "$container" -- tfdist run -np 2 examples/mnist.py --epochs 4 2>&1) || {
    echo "$output" >&2
    exit 1
}
accuracy=$(sed -n 's/.*test accuracy: //p' <<< "$output")
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.9) }' || {
    echo "image-test failed: test accuracy $accuracy after 4 epochs" >&2
    exit 1
}
echo "two ranks in one container: test accuracy $accuracy after 4 epochs"
.venv/bin/python tools/image_hosts.py "$name"
echo "image-test passed"
