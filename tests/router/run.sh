#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# sglang-router downstream and upstream of tokentap; the engines are those of `tokentap demo`.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. The router is installed once in target/router, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
export PYTHONDONTWRITEBYTECODE=1
venv=$root/target/router list=$here/requirements.txt
python_environment "$venv" "$list"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
timeout 300 "$venv/bin/python" "$here/both_ways.py" --tokentap "$tokentap" --work "$work"
record_passed sglang-router "$(package_version "$venv/bin/python" sglang-router)" "bash tests/router/run.sh"
