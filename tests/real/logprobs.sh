#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# logprobs.sh [logprobs.py arguments]   what logprobs cost SGLang itself: tokens a second without them, and with k = 0, 5 and 20.
#   BASE              the URL of a running server, for example on a GPU; it must be otherwise idle. Without it, SGLang 0.5.23 on the CPU
#   MODEL             the weights that the server on the CPU loads (tiny random weights with 151,936 tokens; smollm2 for those of smollm2.sh)
#   REAL_SGLANG_HOME  where the server is installed (~/.cache/real-sglang)
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../common.sh"
record_default "$*" MODEL
if [[ ${BASE:-} ]]; then exec python3 "$here/logprobs.py" --base "$BASE" "$@"; fi
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
source "$here/servers.sh"
# set +e: the status of the stopped processes must not become that of this script
trap 'set +e; stop' EXIT
trap 'exit 130' INT TERM
read -r engine _ < <(free_ports)
"$here/setup.sh" 0.5.23
if [[ ${MODEL:-} == smollm2 ]]; then
  "$here/smollm2.sh"
  MODEL=$REAL_SGLANG_HOME/smollm2
fi
MODEL=${MODEL:-} serve 0.5.23 "$engine" --incremental-streaming-output
python3 "$here/logprobs.py" --base "http://127.0.0.1:$engine" --group "$server" "$@"
record_passed SGLang "$(sglang_version "http://127.0.0.1:$engine")" "bash tests/real/logprobs.sh"
