#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs spills.py on the assembler and disassembler of Python wheels (60 MB, in a temporary environment).
# VENV names a virtual environment to use and keep instead.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${VENV:-$(mktemp -d)}
if [[ -z ${VENV:-} ]]; then trap 'rm -r "$venv"' EXIT; fi
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check \
  nvidia-cuda-nvcc-cu12==12.9.86 nvidia-cuda-nvdisasm==13.5.37
"$venv/bin/python" "$here/spills.py"
