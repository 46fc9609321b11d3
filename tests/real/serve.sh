#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# serve.sh VERSION PORT [server arguments]   starts the SGLang that setup.sh installed, on 127.0.0.1, and returns when it answers
# (about a minute, several on a busy machine). Stop it: kill -- -$(cat $REAL_SGLANG_HOME/PORT.pid). MODEL=dir serves other weights.
# PROMPT_LOG=file logs the token ids of each prompt.
# Useful: --incremental-streaming-output, --stream-output (0.5.6), --stream-interval 4, --enable-metrics, --api-key K.
set -euo pipefail
version=${1:?version}; port=${2:?port}; shift 2
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
shims=$here/shims; [[ $version == 0.5.6* ]] && shims+=:$here/shims056
export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PYTHONPATH=$shims${PYTHONPATH:+:$PYTHONPATH}
log=$home/$port.log
launcher=(-m sglang.launch_server)
[[ ${PROMPT_LOG:-} ]] && launcher=("$here/prompt_log.py" "$PROMPT_LOG")
# an idle scheduler would use a core; with the flag, 0.5.6 did not answer /get_server_info within two minutes
idle=(--sleep-on-idle); [[ $version == 0.5.6* ]] && idle=()
# setsid: the processes of the server get a separate group, which one kill ends
setsid "$home/venv-$version/bin/python" "${launcher[@]}" \
  --model-path "${MODEL:-$home/model-0}" --served-model-name tiny --host 127.0.0.1 --port "$port" \
  --device cpu --attention-backend torch_native --sampling-backend pytorch --grammar-backend none \
  --disable-cuda-graph --dtype float32 --mem-fraction-static 0.8 --max-total-tokens 16384 \
  --max-running-requests 16 --skip-server-warmup ${idle[@]+"${idle[@]}"} "$@" >"$log" 2>&1 &
pid=$!
echo "$pid" >"$home/$port.pid"
for _ in $(seq 900); do
  sleep 1
  code=$(curl -s -m 2 -o /dev/null -w '%{http_code}' "http://127.0.0.1:$port/get_model_info" || true)
  [[ $code == 200 || $code == 401 ]] && { echo "SGLang $version on 127.0.0.1:$port, pid $pid, log $log"; exit 0; }
  kill -0 "$pid" 2>/dev/null || { tail -20 "$log"; echo "SGLang ended"; exit 1; }
done
echo "no answer in 900 s, see $log"; exit 1
