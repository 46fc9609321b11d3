#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# policies.sh   two LoRA adapters on a real SGLang 0.5.23 on the CPU, what tokentap records of them, and clients under load while a trainer
# pauses the engine and aborts what runs.
#   TOKENTAP          the binary (target/release/tokentap)
#   REAL_SGLANG_HOME  where the server is installed (~/.cache/real-sglang)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../common.sh"
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
version=0.5.23
tokentap=${TOKENTAP:-$here/../../target/release/tokentap}
work=$(mktemp -d)
source "$here/servers.sh"
# set +e: the status of the stopped processes must not become that of this script
trap 'set +e; stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
read -r engine data control < <(free_ports)
"$here/setup.sh" "$version"
python=$REAL_SGLANG_HOME/venv-$version/bin/python
for seed in 0 1 2; do
  "$python" "$here/make_lora.py" --model "$REAL_SGLANG_HOME/model-0" --out "$work/lora-$seed" --seed "$seed"
done
# the other backends need Triton, and this one pins memory
serve "$version" "$engine" --enable-lora --lora-backend torch_native --max-lora-rank 8 --lora-target-modules q_proj v_proj \
  --max-loras-per-batch 4 --lora-paths "a=$work/lora-0" "b=$work/lora-1"
front "http://127.0.0.1:$engine" "$data" "$control"
"$python" "$here/adapters.py" --direct "http://127.0.0.1:$engine" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" \
  --adapter "$work/lora-0" --adapter "$work/lora-1" --adapter "$work/lora-2"
kill "$proxy"; wait "$proxy" || true
front "http://127.0.0.1:$engine" "$data" "$control" --pause-wait 60s --on-abort retry
"$python" "$here/interruptions.py" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control"
kill "$proxy"; wait "$proxy" || true
front "http://127.0.0.1:$engine" "$data" "$control" --pause-wait 60s --on-abort resume
"$python" "$here/interruptions.py" --via "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" --resumes
record_passed SGLang "$(sglang_version "http://127.0.0.1:$engine")" "bash tests/real/policies.sh"
