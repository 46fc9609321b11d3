#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup.sh [0.5.23 | 0.5.12 | 0.5.6.post2]   installs an unmodified SGLang for the CPU and makes tiny random Qwen3 weights for it:
# one or two minutes, about 6.5 GB. Everything goes below $REAL_SGLANG_HOME (~/.cache/real-sglang); a second run
# installs only what is missing. Needs python3 with pip, npm and the package registries.
set -euo pipefail
version=${1:-0.5.23}
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
venv=$home/venv-$version
mkdir -p "$home"
command -v uv >/dev/null || python3 -m pip install -q uv
if [[ ! -f $venv/.done ]]; then
  uv venv -q --clear --python 3.11 "$venv"
  # --no-deps: SGLang requires GPU packages; shims/ replaces the few that are imported anyway
  uv pip install -q --python "$venv/bin/python" --no-deps -r "$here/requirements-$version.txt"
  uv pip install -q --python "$venv/bin/python" --no-deps "sglang==$version"
  touch "$venv/.done"
fi
bash "$here/tokenizer.sh" "$home"
[[ -f $home/model-0/config.json ]] ||
  "$venv/bin/python" "$here/make_model.py" --out "$home/model-0" --tokenizer "$home/tokenizer" --seed 0
