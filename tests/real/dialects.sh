#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# dialects.sh [API...]   compares the prompts of Messages and Responses requests with those of SGLang's own endpoints. Default: both APIs.
#   TOKENTAP          the binary (target/release/tokentap)
#   VERSION           the SGLang to compare with (0.5.23)
#   REAL_SGLANG_HOME  where the server is installed (~/.cache/real-sglang)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../common.sh"
record_default "$*" VERSION
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
version=${VERSION:-0.5.23}
tokentap=${TOKENTAP:-$here/../../target/release/tokentap}
work=$(mktemp -d)
source "$here/servers.sh"
# set +e: the status of the stopped processes must not become that of this script
trap 'set +e; stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
read -r engine data control < <(free_ports)
"$here/setup.sh" "$version"
: >"$work/prompts"
PROMPT_LOG=$work/prompts "$here/serve.sh" "$version" "$engine" --reasoning-parser qwen3 --tool-call-parser qwen25
server=$(cat "$REAL_SGLANG_HOME/$engine.pid")
front "http://127.0.0.1:$engine" "$data" "$control"
"$REAL_SGLANG_HOME/venv-$version/bin/python" "$here/dialects.py" --direct "http://127.0.0.1:$engine" --via "http://127.0.0.1:$data" \
  --log "$work/prompts" --model "$REAL_SGLANG_HOME/model-0" "$@"
record_passed SGLang "$(sglang_version "http://127.0.0.1:$engine")" "bash tests/real/dialects.sh"
