#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The official openai SDK, sync and async, with and without streaming, with `tokentap demo` as the server.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. The environment of the client is made once in target/openai, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
export PYTHONDONTWRITEBYTECODE=1
source "$here/environment.sh"
python=$(openai_python "$root")

work=$(mktemp -d)
demo=''
trap 'if [[ $demo ]]; then kill "$demo" 2>/dev/null; wait "$demo" || true; fi; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

"$tokentap" demo --listen 127.0.0.1:0 --control-listen 127.0.0.1:0 --control-token secret --separate-reasoning always >"$work/demo" 2>&1 &
demo=$!
for _ in $(seq 300); do
  if grep -q 'served from tokens' "$work/demo" && grep -q '^Metrics:' "$work/demo" || ! kill -0 "$demo" 2>/dev/null; then break; fi
  sleep 0.1
done
found() { grep -m1 "$1" "$work/demo" | grep -oE '127\.0\.0\.1:[0-9]+' | head -1; }
# the demo publishes no port of its engine, but logs where its upstream is
engine=$(found 'the upstream answers') data=$(found '/generate') control=$(found '^Metrics:')
if [[ ! $engine || ! $data || ! $control ]]; then cat "$work/demo"; echo "the demo did not start" >&2; exit 1; fi
timeout 300 "$python" "$here/client.py" --data "$data" --control "$control" --token secret --engine "$engine" \
  --tokentap "$tokentap" --work "$work"
record_passed 'openai (Python)' "$(package_version "$python" openai)" "bash tests/openai/run.sh"
