#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real OpenTelemetry collector (Rotel, a PyPI wheel) receives the spans of `tokentap demo --otlp`. Stopped and ended, it delays no
# generation; what it does not take is counted.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. The collector is installed once into target/otlp, which needs PyPI.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
mkdir -p "$root/target/otlp"
python_environment "$root/target/otlp/venv" "$here/requirements.txt"
export PYTHONDONTWRITEBYTECODE=1
venv=$root/target/otlp/venv/bin/python
timeout 300 "$venv" "$here/check.py" "$tokentap"
record_passed "Rotel (OpenTelemetry)" "$(package_version "$venv" rotel)" "bash tests/otlp/run.sh"
