#!/usr/bin/env bash
# Makes a bare Debian as an image for buildah, once, and prints its name; ends with code 3 and says why where that cannot be done.
#
#   tools/debian_base.sh [SUITE]
#
# Needs root, and Debian's packages buildah and debootstrap, which are installed if they are missing.
set -euo pipefail
suite=${1:-bookworm}
name=localhost/tfdist-test-$suite

cannot() {
    echo "skipped: $*" >&2
    exit 3
}
[ "$(id -u)" = 0 ] || cannot "it needs root, to make a root file system"
command -v apt-get > /dev/null || cannot "it needs Debian's packages"
for tool in buildah debootstrap; do
    command -v $tool > /dev/null && continue
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $tool; } > /dev/null ||
        cannot "Debian's package $tool could not be installed"
done

if ! buildah inspect --type image "$name" > /dev/null 2>&1; then
    work=$(mktemp -d)
    trap 'rm -rf "$work"' EXIT
    debootstrap --variant=minbase --include=ca-certificates "$suite" "$work/root" > "$work/log" 2>&1 || {
        tail -20 "$work/log" >&2
        exit 1
    }
    chroot "$work/root" apt-get clean
    # What this machine needs to reach its packages, the image needs too.
    for file in /etc/pip.conf /etc/ssl/certs/ca-certificates.crt; do
        [ ! -f $file ] || cp $file "$work/root$file"
    done
    container=$(buildah from scratch)
    buildah add --quiet "$container" "$work/root" / > /dev/null
    buildah commit --quiet "$container" "$name" > /dev/null
    buildah rm "$container" > /dev/null
fi
echo "$name"
