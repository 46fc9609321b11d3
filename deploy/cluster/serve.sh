#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs an engine and tokentap on this node, until its input ends, or one of them does. tokentap.sbatch and ray_job.py start it on each node.
#   MODEL         the model of SGLang
#   SGLANG_ARGS   more arguments of SGLang, such as "--tp 8"
#   ENGINE        a command instead of SGLang, which serves on 127.0.0.1:30000
# Both are split at white space, without regard to quotes.
#   ENGINE_GPUS   CUDA_VISIBLE_DEVICES of the engine
#   NODE          the name or address under which other nodes reach this one
#   DATA          folder for the log of trajectories; without it they are only in memory
# TOKENTAP_* variables are settings of tokentap; TOKENTAP_CONTROL_TOKEN must be set.
set -euo pipefail
: "${NODE:?}" "${TOKENTAP_CONTROL_TOKEN:?}"
sglang="python3 -m sglang.launch_server --model-path ${MODEL:-} --host 127.0.0.1 --port 30000 --enable-metrics --incremental-streaming-output"
if [[ ! ${ENGINE:-} && ! ${MODEL:-} ]]; then
  echo "serve.sh: set MODEL to the model of SGLang" >&2
  exit 64
fi
# at the end of its input, read returns 1
read -rd '' -a engine <<<"${ENGINE:-$sglang ${SGLANG_ARGS:-}}" || true
if [[ ${ENGINE_GPUS:-} ]]; then engine=(env "CUDA_VISIBLE_DEVICES=$ENGINE_GPUS" "${engine[@]}"); fi

# tokentap first: it finishes the running generations, for which it needs the engine
stop() {
  for pid in ${tokentap:-} ${engine_pid:-} ${input:-}; do
    kill "$pid" 2>/dev/null || true
    wait "$pid" || true
  done
}
trap stop EXIT
trap 'exit 143' TERM INT

"${engine[@]}" </dev/null &
engine_pid=$!
settings=(--upstream http://127.0.0.1:30000 --listen 0.0.0.0:30001 --control-listen 0.0.0.0:30002 --control-host "$NODE")
if [[ ${DATA:-} ]]; then
  mkdir -p "$DATA/$NODE"
  settings+=(--data-dir "$DATA/$NODE")
fi
tokentap serve "${settings[@]}" </dev/null &
tokentap=$!
# in the background, standard input would be /dev/null
exec 3<&0
cat <&3 >/dev/null &
input=$!
wait -n "$engine_pid" "$tokentap" "$input" || true
for pid in "$engine_pid" "$tokentap"; do
  if ! kill -0 "$pid" 2>/dev/null; then
    echo "serve.sh: the engine or tokentap of $NODE has ended" >&2
    exit 1
  fi
done
