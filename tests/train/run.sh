#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [train.py arguments]   trains SmolLM2-135M with python/examples/train on the CPU: a real SGLang samples through tokentap, a loop in plain
# torch trains, and curves.png shows reward and entropy. With RESUME=1 a start continues after the last checkpoint in OUT.
#   AGENT             sdk or strands: agent.py instead of train.py, with the openai SDK or strands-agents as the agent
#   SHORT=1           two steps in a temporary folder
#   STEPS             the number of steps (20); from ten on the reward must rise
#   ESTIMATOR         grpo (default) or egpo
#   MODEL             a folder with other weights; without it that of ../real/smollm2.sh
#   OUT               metrics, checkpoints and curves.png (target/train/ESTIMATOR, target/train/AGENT-ESTIMATOR)
#   TOKENTAP          the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON            the interpreter that draws (python3); AGENT=strands also needs python3.11
#   REAL_SGLANG_HOME  where ../real/setup.sh installs SGLang (~/.cache/real-sglang)
# Builds no tokentap. Exit status 1 if the numbers of tokentap and the trainer differ, or the reward does not rise.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$here/../common.sh"
record_default "$*" RESUME SHORT STEPS ESTIMATOR MODEL
source "$here/../real/servers.sh"
tokentap=$(find_tokentap "$root") || exit
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
case ${AGENT:-} in '' | sdk | strands) ;; *) echo "AGENT is sdk or strands, not $AGENT" >&2; exit 2 ;; esac
estimator=${ESTIMATOR:-grpo} steps=${STEPS:-20} rises=()
work=$(mktemp -d)
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
if [[ ${SHORT:-} ]]; then steps=${STEPS:-2} OUT=$work/out; fi
if ((steps >= 10)); then rises=(--rises); fi
name=${AGENT:+$AGENT-}$estimator program=train.py flags=() arguments=()
out=${OUT:-$root/target/train/$name}
if [[ -e $out/metrics.jsonl && ! ${RESUME:-} ]]; then
  echo "$out has a run: remove it, set OUT, or continue it with RESUME=1" >&2
  exit 2
fi

bash "$here/../real/setup.sh" 0.5.23 || exit
python=$REAL_SGLANG_HOME/venv-0.5.23/bin/python
model=${MODEL:-$REAL_SGLANG_HOME/smollm2}
if [[ ! ${MODEL:-} ]]; then bash "$here/../real/smollm2.sh" || exit; fi

if [[ ${AGENT:-} ]]; then
  program=agent.py
  # the model's tokenizer with a template that shows tools, which its own does not
  mkdir "$work/tokenizer"
  cp "$model"/tokenizer*.json "$work/tokenizer/"
  cp "$root/python/examples/train/tools.jinja" "$work/tokenizer/chat_template.jinja"
  flags=(--tokenizer "$work/tokenizer" --tool-call-parser pythonic)
fi
if [[ ${AGENT:-} == strands ]]; then
  venv=$(PYTHON=python3.11 bash "$root/tests/trainers/setup.sh" strands) || exit
  arguments=(--agent "$(printf '%q ' env "PYTHONPATH=$root/python/examples/train" "$venv/bin/python" "$here/strands/episodes.py")")
fi

read -r engine data control < <(free_ports)
# all samples of a step run at once
MODEL=$model serve 0.5.23 "$engine" --max-running-requests 64 || exit
sglang=$(sglang_version "http://127.0.0.1:$engine")
front "http://127.0.0.1:$engine" "$data" "$control" ${flags[@]+"${flags[@]}"} || exit
PYTHONPATH=$root/python/tokentap "$python" "$root/python/examples/train/$program" --model "$model" --work "$out" \
  --url "http://127.0.0.1:$data" --control-url "http://127.0.0.1:$control" --estimator "$estimator" --steps "$steps" \
  ${arguments[@]+"${arguments[@]}"} "$@" || {
  code=$?
  tail -20 "$work/tokentap.log"
  exit "$code"
}
stop

mkdir -p "$root/target/train"
python_environment "$root/target/train/venv" "$here/requirements.txt" || exit
"$root/target/train/venv/bin/python" "$root/python/examples/train/curves.py" "$out/curves.png" "$name=$out/metrics.jsonl" || exit
python3 "$here/check.py" "$out/metrics.jsonl" "$steps" ${rises[@]+"${rises[@]}"} || exit
case ${AGENT:-} in
  '') record_passed SGLang "$sglang" "bash tests/train/run.sh" ;;
  sdk) record_passed SGLang "$sglang" "AGENT=sdk bash tests/train/run.sh" ;;
  strands) record_passed strands-agents "$(package_version "$venv/bin/python" strands-agents)" "AGENT=strands bash tests/train/run.sh" ;;
esac
