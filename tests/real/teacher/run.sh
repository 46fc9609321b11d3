#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# teacher/run.sh   scores of a real SGLang 0.5.23 on the CPU, with tiny random weights and tokentap in front. A few minutes.
#   TOKENTAP          the binary (target/release/tokentap)
#   REAL_SGLANG_HOME  where the server is installed (~/.cache/real-sglang)
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../common.sh"
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
tokentap=${TOKENTAP:-$here/../../../target/release/tokentap}
python=$REAL_SGLANG_HOME/venv-0.5.23/bin/python
work=$(mktemp -d)

source "$here/../servers.sh"
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

bash "$here/../setup.sh" 0.5.23 || exit 1
"$python" "$here/../make_model.py" --out "$work/teacher" --tokenizer "$REAL_SGLANG_HOME/tokenizer" --seed 1 || exit 1
read -r engine data control < <(free_ports)
serve 0.5.23 "$engine" || exit 1
front "http://127.0.0.1:$engine" "$data" "$control" --columns top_logprobs --teacher-host 127.0.0.1 || exit 1
"$python" "$here/check.py" --data "http://127.0.0.1:$data" --control "http://127.0.0.1:$control" \
  --direct "http://127.0.0.1:$engine" --student "$REAL_SGLANG_HOME/model-0" --teacher "$work/teacher" --tokentap "$tokentap" &&
  record_passed SGLang "$(sglang_version "http://127.0.0.1:$engine")" "bash tests/real/teacher/run.sh"
