#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [grpo.py arguments]   tunix's GRPO learner trains SmolLM2-135M in JAX on the CPU (grpo.py here): a real SGLang samples through
# tokentap and loads the weights of each step; curves.png shows reward and entropy.
#   SHORT=1           two steps in a temporary folder
#   STEPS             the number of steps (12); from ten on the reward must rise
#   MODEL             a folder with the weights of another Llama; without it that of ../../real/smollm2.sh
#   OUT               metrics, weights and curves.png (target/train/tunix)
#   TOKENTAP          the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON            the interpreter of tunix (python3.11)
#   REAL_SGLANG_HOME  where ../../real/setup.sh installs SGLang (~/.cache/real-sglang)
# Builds no tokentap. Exit status 1 if the numbers of tokentap and the learner differ, or the reward does not rise.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
source "$root/tests/common.sh"
record_default "$*" SHORT STEPS MODEL
source "$root/tests/real/servers.sh"
tokentap=$(find_tokentap "$root") || exit
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1 JAX_PLATFORMS=cpu
# large arrays go back to the system at once: half the memory
export MALLOC_MMAP_THRESHOLD_=${MALLOC_MMAP_THRESHOLD_:-1048576}
# XLA's own threads: one
export XLA_FLAGS=${XLA_FLAGS:---xla_cpu_multi_thread_eigen=false}
steps=${STEPS:-12} rises=()
work=$(mktemp -d)
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
if [[ ${SHORT:-} ]]; then steps=${STEPS:-2} OUT=$work/out; fi
if ((steps >= 10)); then rises=(--rises); fi
out=${OUT:-$root/target/train/tunix}

venv=$(bash "$root/tests/trainers/setup.sh" tunix) || exit
bash "$root/tests/real/setup.sh" 0.5.23 || exit
model=${MODEL:-$REAL_SGLANG_HOME/smollm2}
if [[ ! ${MODEL:-} ]]; then bash "$root/tests/real/smollm2.sh" || exit; fi

read -r engine data control < <(free_ports)
MODEL=$model serve 0.5.23 "$engine" --max-running-requests 64 || exit
front "http://127.0.0.1:$engine" "$data" "$control" || exit
PYTHONPATH=$root/python/tokentap:$root/python/examples/train "$venv/bin/python" "$here/grpo.py" --model "$model" --work "$out" \
  --url "http://127.0.0.1:$data" --control-url "http://127.0.0.1:$control" --steps "$steps" "$@" || {
  code=$?
  tail -20 "$work/tokentap.log"
  exit "$code"
}
stop

mkdir -p "$root/target/train"
PYTHON=python3 python_environment "$root/target/train/venv" "$root/tests/train/requirements.txt" || exit
"$root/target/train/venv/bin/python" "$root/python/examples/train/curves.py" "$out/curves.png" "tunix=$out/metrics.jsonl" || exit
python3 "$root/tests/train/check.py" "$out/metrics.jsonl" "$steps" ${rises[@]+"${rises[@]}"} || exit
record_passed tunix "$(package_version "$venv/bin/python" google-tunix)" "bash tests/train/tunix/run.sh"
