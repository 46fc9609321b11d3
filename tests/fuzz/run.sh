#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [TARGET...]   fuzzes every parser, or the named targets: T seconds each, J at a time. Prints a table with a row for each
# target; exit status 1 if a property failed. The failing inputs are left under target/fuzz.
set -euo pipefail
cd "$(dirname "$0")/../.."
T=${T:-600} J=${J:-1}
out=$PWD/target/fuzz
# the target `log` writes files
if [ -d /dev/shm ]; then export TMPDIR=/dev/shm; fi

cargo +nightly fuzz build --fuzz-dir tests/fuzz --target-dir "$out"
programs=$out/$(rustc -vV | sed -n 's/^host: //p')/release
mkdir -p "$out/logs"

one() {
    mkdir -p "$out/corpus/$1" "$out/broken/$1"
    local log=$out/logs/$1.log ended=0
    # libFuzzer adds inputs to the first folder only; the seeds do not change
    "$programs/$1" "$out/corpus/$1" "tests/fuzz/seeds/$1" -max_total_time="$T" -max_len=4096 -timeout=10 -rss_limit_mb=2048 \
        -print_final_stats=1 -artifact_prefix="$out/broken/$1/" >"$log" 2>&1 || ended=$?
    local last runs broken=none
    last=$(grep -a ' cov: ' "$log" | tail -n 1) || last='cov: ? ft: ? corp: ?/'
    runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
    [ "$ended" -eq 0 ] || broken="see ${log#"$PWD/"}"
    sed -E "s#.*cov: ([0-9?]+) ft: ([0-9?]+) corp: ([0-9?]+)/.*#| $1 | ${runs:-?} | \1 | \3 | $broken |#" <<<"$last"
    [ "$ended" -eq 0 ]
}
export -f one
export T out programs PWD

names=("$@")
[ $# -gt 0 ] || mapfile -t names < <(ls tests/fuzz/seeds)
echo "| reader | runs in $T s | edges | corpus | broken |"
printf '%s\n' "${names[@]}" | xargs -P "$J" -I{} bash -euo pipefail -c 'one {}'
