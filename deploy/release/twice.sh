#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the wheels of the last commit in two clones in different folders, with different umasks, and compares every file but the debug information: twice.sh [FOLDER]
#   FOLDER   for the clones (a new temporary folder); needs 6 GB
set -euo pipefail
work=$(realpath "${1:-$(mktemp -d)}")
cd "$(dirname "$0")/../.."
# the clones must not share one
unset CARGO_TARGET_DIR
# the branch may move before the second clone
commit=$(git rev-parse HEAD)
for clone in one another/two; do
  if [[ $clone == one ]]; then umask 022; else umask 077; fi
  git clone --quiet --no-checkout . "$work/$clone"
  git -C "$work/$clone" checkout --quiet --detach "$commit"
  bash "$work/$clone/deploy/release/wheel.sh" "$(uname -m)-unknown-linux-gnu" >"$work/${clone##*/}.log" 2>&1 ||
    { tail -n 20 "$work/${clone##*/}.log" >&2; exit 1; }
done
for clone in one another/two; do
  # zig's C library has the folder of the build in its debug information
  (cd "$work/$clone/target/packages" && find . -type f ! -name '*.debug.tar.gz' -printf '%P\0' | sort -z | xargs -0 sha256sum --) \
    >"$work/${clone##*/}.sums"
done
diff "$work/one.sums" "$work/two.sums" || { echo "twice.sh: these files differ; see $work" >&2; exit 1; }
cat "$work/one.sums"
if [[ ! ${1:-} ]]; then rm -rf "$work"; fi
