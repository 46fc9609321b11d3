#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The adapters of experiment trackers with the packages themselves, W&B offline, MLflow with SQLite and TensorBoard, and `tokentap demo`.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds no tokentap. The environment is made once in target/trackers, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
TOKENTAP_BIN=$(find_tokentap "$root")
# no test sends anything to a tracker's own servers
export TOKENTAP_BIN PYTHONDONTWRITEBYTECODE=1 WANDB_MODE=offline WANDB_SILENT=true MLFLOW_DISABLE_TELEMETRY=true DO_NOT_TRACK=true
venv=$root/target/trackers/venv
mkdir -p "$root/target/trackers"
python_environment "$venv" "$here/requirements.txt"
cd "$root/python/tokentap"
# a test that is skipped here has failed: the packages are installed
PYTHONPATH=$PWD TRACKERS=1 timeout 300 "$venv/bin/python" -m pytest -q -p no:cacheprovider tests/test_trackers.py
for package in wandb mlflow=mlflow-skinny tensorboard; do
  record_passed "${package%%=*}" "$(package_version "$venv/bin/python" "${package#*=}")" "bash tests/trackers/run.sh"
done
