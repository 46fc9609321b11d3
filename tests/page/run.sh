#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Tests the page in headless Chromium, with `tokentap demo` and with an engine that sends hostile texts (engine.mjs).
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PICTURES   a folder for screenshots; none are taken if it is not set
#   run.sh [CHECK…]   runs only these checks: empty api opens texts chat live export hostile names long pictures pixels big zoom frames compare without measurements samples
#                     grouping run find odd link filter adapters history keyboard access phone token;
#                     many, which needs a release build and takes minutes, runs only if it is named
# Builds nothing. Playwright, axe and the browser are npm packages, named exactly by package-lock.json; they are installed once into
# target/page, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")

work=$root/target/page
mkdir -p "$work"
stamp="$(node --version) $(cat "$here/package.json" "$here/package-lock.json" | cksum)"
if [[ "$(cat "$work/stamp" 2>/dev/null)" != "$stamp" ]]; then
  cp "$here/package.json" "$here/package-lock.json" "$work"
  (cd "$work" && npm ci --silent --no-audit --no-fund --ignore-scripts)
  echo "$stamp" >"$work/stamp"
fi
# Node looks for packages in the parent folders of the importing file
rm -rf "$work/tests"
mkdir "$work/tests"
cp "$here"/*.mjs "$work/tests"
pictures=${PICTURES:+$(realpath "$PICTURES")}
tokentap=$(realpath "$tokentap")
cd "$work"
TOKENTAP=$tokentap PICTURES=$pictures exec timeout 900 node tests/main.mjs "$@"
