#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [--real] [NAME...]   runs trainers that generate through tokentap. NAMEs are folders here; default: all.
#   --real            in front of a real SGLang 0.5.23 on the CPU instead of tokentap's demo engine (../real; minutes, 6 GB)
#   TOKENTAP          the binary (target/release/tokentap, else target/debug/tokentap)
#   REAL_SGLANG_HOME  where ../real/setup.sh installs SGLang (~/.cache/real-sglang)
# Builds nothing. Each program of a folder that has a main part is run: without arguments it starts its own demo (TOKENTAP),
# with --base, --control and --model it uses a running server. Exit status 1 if one failed.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../common.sh"
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
real=''
if [[ ${1:-} == --real ]]; then real=1; shift; fi
names=("$@")
if ((!${#names[@]})); then
  for list in "$here"/requirements-*.txt; do list=${list##*/requirements-}; names+=("${list%.txt}"); done
fi
tokentap=${TOKENTAP:-}
for build in release debug; do
  if [[ ! $tokentap && -x $here/../../target/$build/tokentap ]]; then tokentap=$here/../../target/$build/tokentap; fi
done
if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; exit 2; fi
TOKENTAP=$(realpath "$tokentap")
# the second variable is for the tests of the package
root=$(realpath "$here/../..")
export TOKENTAP TOKENTAP_BIN=$TOKENTAP PYTHONPATH=$root/python/tokentap:$root/python/examples:$root/tests/readers PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false
work=$(mktemp -d)
failed=0 table=''

tokentap=$TOKENTAP
source "$here/../real/servers.sh"
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

arguments=()
start() { # a separate server for each program: one of them changes the weights
  local engine data control
  read -r engine data control < <(free_ports)
  "$here/../real/setup.sh" 0.5.23 || return
  "$here/../real/serve.sh" 0.5.23 "$engine"; local code=$?
  server=$(cat "$REAL_SGLANG_HOME/$engine.pid")
  if ((code)); then return "$code"; fi
  front "http://127.0.0.1:$engine" "$data" "$control" || return
  arguments=(--base "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" --model "$REAL_SGLANG_HOME/model-0")
}

for name in "${names[@]}"; do
  bad=0
  venv=$("$here/setup.sh" "$name") || { failed=1; table+="$name: no environment"$'\n'; continue; }
  for program in "$here/$name"/*.py; do
    grep -q '^if __name__ == "__main__":' "$program" || continue
    # a program without address arguments can only run with the demo
    if [[ $real ]] && ! grep -q -- '"--base"' "$program"; then continue; fi
    echo "== $name/$(basename "$program")${real:+, SGLang 0.5.23}"
    if [[ $real ]] && ! start; then failed=1; stop; bad=1 table+="$name/$(basename "$program"): no server"$'\n'; continue; fi
    "$venv/bin/python" "$program" ${arguments[@]+"${arguments[@]}"} >"$work/out" 2>"$work/errors"; code=$?
    stop
    cat "$work/out"
    if ((code)); then failed=1 bad=1; tail -30 "$work/errors"; fi
    table+=$(printf '%-28s %4d ok %4d FAIL  %s' "$name/$(basename "$program")" "$(grep -c '^ok ' "$work/out")" \
      "$(grep -c '^FAIL ' "$work/out")" "$( ((code)) && echo failed || echo passed)")$'\n'
  done
  if ((bad)); then continue; fi
  case $name in verl) packages='verl' ;; tunix) packages='tunix=google-tunix' ;; strands) packages='strands-sglang' ;; esac
  if [[ $name == verl && ! $real ]]; then packages+=' TransferQueue=transferqueue'; fi
  for package in $packages; do
    record_passed "${package%%=*}" "$(package_version "$venv/bin/python" "${package#*=}")" "bash tests/trainers/run.sh ${real:+--real }$name" || failed=1
  done
done
printf '\n%s' "$table"
exit $failed
