#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh   verl's own trainers train SmolLM2-135M on the CPU: a real SGLang samples through tokentap, verl computes rewards, advantages and
# the update with FSDP2 over gloo, and the weights go to SGLang by disk.
#   RUNS              which: grpo (STEPS steps), egpo and older (two steps each; verl's older trainer has GRPO); default: all three
#   STEPS             the number of steps of grpo (10; fewer do not have to raise the reward)
#   OUT               a folder for RUN.jsonl, the metrics (target/train/verl)
#   TOKENTAP          the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON            Python 3.11 for verl (python3.11)
#   REAL_SGLANG_HOME  where ../../real/setup.sh installs SGLang (~/.cache/real-sglang)
# Builds no tokentap. Exit status 1 if the numbers of tokentap and verl differ, or the reward does not rise.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../../.." && pwd)
source "$here/../../common.sh"
record_default "" RUNS STEPS
source "$here/../../real/servers.sh"
tokentap=$(find_tokentap "$root") || exit
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang} OMP_NUM_THREADS=${OMP_NUM_THREADS:-1}
export PYTHONDONTWRITEBYTECODE=1 TOKENIZERS_PARALLELISM=false HF_HUB_OFFLINE=1
read -ra runs <<<"${RUNS:-grpo egpo older}"
for run in "${runs[@]}"; do
  case $run in grpo | egpo | older) ;; *) echo "RUNS has $run: grpo, egpo and older exist" >&2; exit 2 ;; esac
done
out=${OUT:-$root/target/train/verl}
mkdir -p "$out" || exit
work=$(mktemp -d)
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

venv=$("$here/../../trainers/setup.sh" verl) || exit
bash "$here/../../real/setup.sh" 0.5.23 && bash "$here/../../real/smollm2.sh" || exit
model=$REAL_SGLANG_HOME/smollm2

read -r engine data control < <(free_ports)
# the samples of a step run at once, and the pool of tokens limits SGLang's memory
MODEL=$model serve 0.5.23 "$engine" --max-running-requests 32 --max-total-tokens 4096 || exit
front "http://127.0.0.1:$engine" "$data" "$control" || exit

export PYTHONPATH=$here:$here/..:$root/python/examples:$root/python/examples/train:$root/python/tokentap
export TOKENTAP_BASE_URL=http://127.0.0.1:$data TOKENTAP_CONTROL_URL=http://127.0.0.1:$control
export VERL_PLATFORM=cpu VERL_USE_EXTERNAL_MODULES=verl_cpu,verl_attached,verl_sums,verl_compared
export RAY_USAGE_STATS_ENABLED=0 TQ_NUM_THREADS=1 TQ_CLIENT_ZMQ_IO_THREADS=1

# verl RUN STEPS [settings]
verl() {
  local run=$1 steps=$2; shift 2
  rm -f "$out/$run.jsonl" "$out/$run-rollouts.jsonl"
  "$venv/bin/python" "$here/prompts.py" "$work/$run.parquet" $((4 * steps)) "$run" || return
  VERL_FILE_LOGGER_PATH=$out/$run.jsonl ROLLOUTS=$out/$run-rollouts.jsonl \
    "$venv/bin/python" -m verl.trainer.main_ppo --config-dir "$here" --config-name sums \
    "data.train_files=$work/$run.parquet" "actor_rollout_ref.model.path=$model" \
    "+actor_rollout_ref.rollout.engine_kwargs.attached.folder=$work" \
    "reward.custom_reward_function.path=$here/verl_sums.py" "hydra.run.dir=$work/hydra" \
    "+ray_kwargs.ray_init._temp_dir=$work/ray" "$@" >"$out/$run.log" 2>&1 || {
    code=$?
    tail -40 "$out/$run.log"
    tail -20 "$work/tokentap.log"
    return "$code"
  }
}

failed=0 steps_of_grpo=${STEPS:-10}
for run in "${runs[@]}"; do
  steps=2 settings=() checks=()
  case $run in
    grpo) steps=$steps_of_grpo; if ((steps >= 10)); then checks=(--rises); fi ;;
    egpo) settings=(trainer.v1.trainer_mode=compared_egpo); checks=(--egpo) ;;
    older)
      rollout=actor_rollout_ref.rollout
      settings=(trainer.use_v1=False "+$rollout.agent.agent_loop_manager_class=verl_older.Manager"
        "+$rollout.checkpoint_manager_class=tokentap.verl.CheckpointManager")
      checks=(--rollouts "$out/$run-rollouts.jsonl") ;;
  esac
  echo "== $run"
  verl "$run" "$steps" ${settings[@]+"${settings[@]}"} &&
    python3 "$here/check.py" "$out/$run.jsonl" "$steps" ${checks[@]+"${checks[@]}"} || failed=1
done
if ((!failed)); then
  record_passed verl "$(package_version "$venv/bin/python" verl)" "bash tests/train/verl/run.sh" || failed=1
fi
exit $failed
