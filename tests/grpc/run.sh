#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A Python client, generated from the .proto, with `tokentap demo` as the server.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. The environment of the client is made once in target/grpc, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

venv=$root/target/grpc
stamp="$("${PYTHON:-python3}" -V) $(cksum <"$here/requirements.txt")"
if [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --no-deps --only-binary :all: -r "$here/requirements.txt"
  echo "$stamp" >"$venv/stamp"
fi

work=$(mktemp -d)
demo=''
trap 'if [[ $demo ]]; then kill "$demo" 2>/dev/null; wait "$demo" || true; fi; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
"$venv/bin/python" -m grpc_tools.protoc -I "$root/proto" --python_out="$work" --grpc_python_out="$work" tokentap/v1/tokentap.proto

"$tokentap" demo --listen 127.0.0.1:0 --control-listen 127.0.0.1:0 --control-token secret >"$work/demo" 2>&1 &
demo=$!
for _ in $(seq 300); do
  if grep -q '^Metrics:' "$work/demo" || ! kill -0 "$demo" 2>/dev/null; then break; fi
  sleep 0.1
done
data=$(grep -oEm1 'http://[0-9.:]+/generate' "$work/demo" | grep -oE '[0-9.]+:[0-9]+')
control=$(grep -oEm1 'http://[0-9.:]+/v1' "$work/demo" | grep -oE '[0-9.]+:[0-9]+')
if [[ ! $data || ! $control ]]; then cat "$work/demo"; echo "the demo did not start" >&2; exit 1; fi
PYTHONPATH=$work timeout 300 "$venv/bin/python" "$here/client.py" --data "$data" --control "$control" --token secret
record_passed grpcio "$(package_version "$venv/bin/python" grpcio)" "bash tests/grpc/run.sh"
