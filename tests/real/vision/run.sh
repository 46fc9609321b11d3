#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# vision/run.sh [MODE...]   pictures through tokentap to a real SGLang 0.5.23 on the CPU, with tiny random weights of Qwen3-VL and
# Qwen2.5-VL.
# Modes: the family (qwen3_vl, qwen2_5_vl), with -incremental for the other mode of streams, and with -chats for chats, Messages and
# Responses. All take about an hour.
#   TOKENTAP          the binary (target/release/tokentap)
#   REAL_SGLANG_HOME  where the server is installed (~/.cache/real-sglang)
set -uo pipefail
modes=("$@")
((${#modes[@]})) || modes=({qwen3_vl,qwen2_5_vl}{,-incremental,-chats})
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../common.sh"
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
tokentap=${TOKENTAP:-$here/../../../target/release/tokentap}
python=$REAL_SGLANG_HOME/venv-0.5.23/bin/python
work=$(mktemp -d)
failed=0

source "$here/../servers.sh"
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

bash "$here/../setup.sh" 0.5.23 || exit 1
# the templates of the models, so that chats are rendered as theirs
python3 "$here/../../templates/fetch.py" --into "$REAL_SGLANG_HOME/templates" qwen3-vl qwen2-5-vl || exit 1

one() { # one MODE
  local family=${1%%-*} engine data control flags=() suite=(check.py) log=''
  case $1 in
    *-incremental) flags=(--incremental-streaming-output) suite=(check.py --streams) ;;
    *-chats) log=$work/prompts suite=(chats.py --log "$work/prompts"); : >"$log" ;;
  esac
  [[ -d $work/$family ]] || "$python" "$here/make_vlm.py" "$family" "$REAL_SGLANG_HOME/tokenizer" \
    "$REAL_SGLANG_HOME/templates/${family//_/-}/chat_template.jinja" "$work/$family" 0 || return
  read -r engine data control < <(free_ports)
  PROMPT_LOG=$log MODEL=$work/$family serve 0.5.23 "$engine" --mm-attention-backend sdpa ${flags[@]+"${flags[@]}"} || return
  front "http://127.0.0.1:$engine" "$data" "$control" || return
  suite+=(--model "$work/$family" --direct "http://127.0.0.1:$engine" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control")
  "$python" "$here/${suite[0]}" "${suite[@]:1}" || return
  # what the guard refuses, and what the engine makes of it without the guard
  [[ $log ]] && return
  kill "$proxy"; wait "$proxy"
  front "http://127.0.0.1:$engine" "$data" "$control" --no-guard || return
  "$python" "$here/${suite[0]}" "${suite[@]:1}" --no-guard
}

for mode in "${modes[@]}"; do
  echo "== $mode"
  if one "$mode"; then
    echo "$mode: ok"
    record_passed SGLang "$(package_version "$python" sglang)" "bash tests/real/vision/run.sh $mode" || failed=1
  else
    echo "$mode: FAILED"
    failed=1
  fi
  stop
done
exit "$failed"
