#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# moe/run.sh [MODE...]   routed experts of a real SGLang 0.5.23 on the CPU, with tiny mixture-of-experts weights and tokentap in front.
# Modes: cumulative, incremental, off (without the engine's flag). About ten minutes.
#   TOKENTAP          the binary (target/release/tokentap)
#   REAL_SGLANG_HOME  where the server is installed (~/.cache/real-sglang)
set -uo pipefail
modes=("$@")
((${#modes[@]})) || modes=(cumulative incremental off)
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../common.sh"
record_default "$*"
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
tokentap=${TOKENTAP:-$here/../../../target/release/tokentap}
python=$REAL_SGLANG_HOME/venv-0.5.23/bin/python
work=$(mktemp -d)
failed=0

source "$here/../servers.sh"
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

bash "$here/../setup.sh" 0.5.23 || exit 1
for seed in 0 1; do
  "$python" "$here/make_moe.py" "$REAL_SGLANG_HOME/model-0" "$work/moe-$seed" "$seed" || exit 1
done

one() { # one MODE
  local engine data control flags=(--enable-return-routed-experts)
  read -r engine data control < <(free_ports)
  [[ $1 == incremental ]] && flags+=(--incremental-streaming-output)
  [[ $1 == off ]] && flags=()
  MODEL=$work/moe-0 serve 0.5.23 "$engine" ${flags[@]+"${flags[@]}"} || return
  found=$(sglang_version "http://127.0.0.1:$engine")
  front "http://127.0.0.1:$engine" "$data" "$control" --columns routed_experts --on-abort resume || return
  "$tokentap" check --upstream "http://127.0.0.1:$engine" --columns routed_experts,sampling_mask,top_logprobs | grep column
  if [[ $1 == off ]]; then
    curl -sf "http://127.0.0.1:$data/sessions/s/generate" -H 'content-type: application/json' -o /dev/null \
      -d '{"input_ids":[5,6,7],"sampling_params":{"max_new_tokens":4}}' || return
    curl -sf "http://127.0.0.1:$control/v1/sessions/s/trajectories" | grep -q '"reason":"not_returned"'
    return
  fi
  "$python" "$here/check.py" --data "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" \
    --direct "http://127.0.0.1:$engine" --model "$work/moe-0" --other "$work/moe-1"
}

for mode in "${modes[@]}"; do
  echo "== $mode"
  if one "$mode"; then echo "$mode: ok"; else echo "$mode: FAILED"; failed=1; fi
  stop
done
if ((!failed)); then record_passed SGLang "$found" "bash tests/real/moe/run.sh" || failed=1; fi
exit "$failed"
