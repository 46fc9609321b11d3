#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [MODE...]   tests tokentap in front of real SGLang servers: replies directly and through tokentap, exports of conversations,
# chats of the openai SDK, and entropies compared with the weights, which are random or those of SmolLM2. All modes take about an hour,
# 2 cores and 5 GB of memory.
#   TOKENTAP          the binary (target/release/tokentap)
#   REAL_SGLANG_HOME  where the servers are installed (~/.cache/real-sglang)
#   TOKENS            the number of tokens whose entropies are compared in each mode that measures the accuracy (1500)
#   SELF=1            no tokentap: compare the server with itself, to test the comparison
set -uo pipefail
modes=("$@")
((${#modes[@]})) || modes=(0.5.23 0.5.23-smollm2 0.5.23-incremental 0.5.23-original 0.5.12 0.5.6 0.5.6-stream-output)
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../common.sh"
record_default "" TOKENS
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
tokentap=${TOKENTAP:-$here/../../target/release/tokentap}
work=$(mktemp -d)
table='' failed=0

source "$here/servers.sh"
source "$here/../openai/environment.sh"
openai=$(openai_python "$(cd "$here/../.." && pwd)") || exit
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

accuracy() { # accuracy VERSION MODEL DATA CONTROL [options]: compares entropies with the weights
  local version=$1 model=$2 data=$3 control=$4; shift 4
  "$REAL_SGLANG_HOME/venv-$version/bin/python" "$here/accuracy.py" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" \
    --model "$model" --tokens "${TOKENS:-1500}" "$@"
}

smollm2() { # smollm2 VERSION: a model with trained weights: only what depends on the weights and their chat template
  local version=$1 model=$REAL_SGLANG_HOME/smollm2 engine data control bad=0
  [[ ${SELF:-} ]] && return
  read -r engine data control < <(free_ports)
  "$here/setup.sh" "$version" && "$here/smollm2.sh" "$version" || return
  MODEL=$model "$here/serve.sh" "$version" "$engine"; local served=$?
  server=$(cat "$REAL_SGLANG_HOME/$engine.pid")
  ((served)) && return "$served"
  front "http://127.0.0.1:$engine" "$data" "$control" || return
  "$tokentap" check --upstream "http://127.0.0.1:$engine" >"$work/check"
  if grep '^warn  tools .* ignores tools' "$work/check"; then
    echo 'ok    check    warns that the template ignores tools'
  else
    cat "$work/check"; echo 'FAIL  check    does not warn that the template ignores tools'; bad=1
  fi
  accuracy "$version" "$model" "$data" "$control" --answer Paris || bad=1
  ((bad)) && tail -20 "$work/tokentap.log"
  found=$(sglang_version "http://127.0.0.1:$engine")
  return $bad
}

one() { # one MODE: returns 0 if all checks pass
  local mode=$1 version=${1%%-*} arguments=() options=() engine data control
  [[ $mode == *-smollm2 ]] && { smollm2 "$version"; return; }
  [[ $version == 0.5.6 ]] && version=0.5.6.post2
  # for chat.py: reply parsers, and the logit processor that makes the model sample given ids
  arguments+=(--reasoning-parser qwen3 --tool-call-parser qwen25 --enable-custom-logit-processor)
  [[ $mode == *-incremental ]] && arguments+=(--incremental-streaming-output)
  [[ $mode == *-stream-output ]] && arguments+=(--stream-output)
  [[ $mode == *-original ]] && { export SGLANG_RETURN_ORIGINAL_LOGPROB=1; options+=(--original); }
  read -r engine data control < <(free_ports)
  "$here/setup.sh" "$version" || return
  "$here/serve.sh" "$version" "$engine" "${arguments[@]}"; local served=$?
  server=$(cat "$REAL_SGLANG_HOME/$engine.pid")
  unset SGLANG_RETURN_ORIGINAL_LOGPROB
  ((served)) && return "$served"
  local direct=http://127.0.0.1:$engine model=$REAL_SGLANG_HOME/model-0
  if [[ ${SELF:-} ]]; then
    python3 "$here/compare.py" --direct "$direct" --via "$direct" --model "$model" --no-entropy "${options[@]}"
    return
  fi
  front "$direct" "$data" "$control" || return
  local bad=0
  python3 "$here/compare.py" --direct "$direct" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" \
    --model "$model" --save "$work/$mode" "${options[@]}" || bad=1
  python3 "$here/sessions.py" --direct "$direct" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" || bad=1
  "$openai" "$here/chat.py" --direct "$direct" --tokentap "$tokentap" --model "$model" \
    --python "$REAL_SGLANG_HOME/venv-$version/bin/python" --work "$work" || bad=1
  "$REAL_SGLANG_HOME/venv-$version/bin/python" "$here/truth.py" "$model" "$work/$mode" || bad=1
  if [[ $mode == 0.5.23 || $mode == 0.5.12 ]]; then
    accuracy "$version" "$model" "$data" "$control" || bad=1
  fi
  ((bad)) && tail -20 "$work/tokentap.log"
  found=$(sglang_version "$direct")
  return $bad
}

for mode in "${modes[@]}"; do
  echo "== $mode"
  # not in a subshell: stop needs the pids
  one "$mode" >"$work/$mode.out" 2>&1; code=$?
  cat "$work/$mode.out"
  stop
  ((code)) && failed=1
  if ((!code)) && [[ ! ${SELF:-} ]]; then record_passed SGLang "$found" "bash tests/real/run.sh $mode" || failed=1; fi
  table+=$(printf '%-22s %5d ok %5d FAIL  %s' "$mode" "$(grep -c '^ok ' "$work/$mode.out")" \
    "$(grep -c '^FAIL ' "$work/$mode.out")" "$( ((code)) && echo failed || echo passed)")$'\n'
done
printf '\n%s' "$table"
exit $failed
