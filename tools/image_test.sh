#!/usr/bin/env bash
# Builds docker/Dockerfile without a container engine, on a Debian made by debootstrap, and trains inside: about 10 minutes.
#
#   tools/image_test.sh [NAME]
#
# Needs root and Debian's packages buildah and debootstrap (installed if missing); says why and skips elsewhere.
# The image is kept as NAME, localhost/tfdist unless given.
set -euo pipefail
cd "$(dirname "$0")/.."
name=${1:-localhost/tfdist}
base=localhost/tfdist-test-base
suite=bookworm

skip() {
    echo "image-test skipped: $*" >&2
    exit 0
}
[ "$(id -u)" = 0 ] || skip "it needs root, to make a root file system"
command -v apt-get > /dev/null || skip "it needs Debian's packages"
for tool in buildah debootstrap; do
    command -v $tool > /dev/null && continue
    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $tool > /dev/null ||
        skip "$tool could not be installed"
done

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if ! buildah inspect --type image $base > /dev/null 2>&1; then
    debootstrap --variant=minbase --include=ca-certificates $suite "$work/root" > "$work/log" 2>&1 || { tail -20 "$work/log" >&2; exit 1; }
    rm -f "$work"/root/var/cache/apt/archives/*.deb
    # What this machine needs to reach its packages, the image needs too.
    for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -f $file ] || cp $file "$work/root$file"
    done
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/root" / > /dev/null
    buildah commit --quiet "$container" $base > /dev/null
    buildah rm "$container" > /dev/null
fi

buildah build --isolation chroot --format docker --layers --build-arg "BASE_IMAGE=$base" \
    --build-arg "REVISION=$(git rev-parse --short HEAD 2> /dev/null || echo unknown)" -f docker/Dockerfile -t "$name" .

container=$(buildah from "$name")
trap 'buildah rm "$container" > /dev/null; rm -rf "$work"' EXIT
echo "Training in the image, as $(buildah run --isolation chroot "$container" -- id -un):"
buildah run --isolation chroot "$container" -- tfdist run -np 2 examples/mnist.py --epochs 4 | tee "$work/output"
accuracy=$(sed -n 's/.*test accuracy: //p' "$work/output")
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.9) }' || { echo "image-test failed: test accuracy $accuracy after 4 epochs" >&2; exit 1; }
echo "image-test passed: test accuracy $accuracy after 4 epochs"
