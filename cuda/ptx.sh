#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs ptx.py with its arguments and the compiler of a Python wheel (23 MB, in a temporary environment): ptx.sh [--check]
# VENV names a virtual environment to use and keep instead.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${VENV:-$(mktemp -d)}
if [[ -z ${VENV:-} ]]; then trap 'rm -r "$venv"' EXIT; fi
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check nvidia-cuda-nvrtc-cu12==12.0.140
"$venv/bin/python" "$here/ptx.py" "$@"
