#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Executes docs/notebooks/entropy.ipynb with a demo engine, and checks its outputs.
#   run.sh         checks that the notebook runs and that the stored outputs are of the same kinds
#   run.sh write   also stores the outputs; with CHROMIUM also renders docs/images/notebook-*.png
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
#   CHROMIUM   a Chromium, for the pictures
# Builds no tokentap. The environment is made once in target/notebook, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
export PYTHONDONTWRITEBYTECODE=1
mkdir -p "$root/target/notebook"
python_environment "$root/target/notebook/venv" "$here/requirements.txt"
options=()
if [[ ${1:-} == write ]]; then
  options=(--write)
  if [[ ${CHROMIUM:-} ]]; then options+=(--pictures "$CHROMIUM"); fi
fi
timeout 300 "$root/target/notebook/venv/bin/python" "$here/execute.py" --tokentap "$tokentap" "${options[@]}"
