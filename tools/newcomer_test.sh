#!/usr/bin/env bash
# What a newcomer does: on a bare Debian with python3, make and g++, a fresh clone and one command. Prints how long it took.
#
#   tools/newcomer_test.sh
#
# About 5 minutes. Says why and skips where it cannot be done.
set -euo pipefail
cd "$(dirname "$0")/.."
base=$(tools/debian_base.sh) || { [ $? = 3 ] && exit 0 || exit 1; }

container=$(buildah from "$base")
trap 'buildah rm "$container" > /dev/null; rm -rf "$clone"' EXIT
clone=$(mktemp -d)
git clone --quiet . "$clone/tfdist"
buildah copy --quiet "$container" "$clone/tfdist" /home/tfdist > /dev/null
run() { buildah run --isolation chroot "$container" -- sh -c "$1"; }
run 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends python3 make g++' > /dev/null

begin=$SECONDS
run 'cd /home/tfdist && make train' | tee "$clone/output"
accuracy=$(sed -n 's/.*test accuracy: //p' "$clone/output")
echo "newcomer-test: from clone to a test accuracy of $accuracy on two ranks in $((SECONDS - begin)) s"
awk -v a="$accuracy" 'BEGIN { exit !(a > 0.97) }'
