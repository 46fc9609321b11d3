#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clients in Python and TypeScript, generated from the document at /openapi.json by openapi-python-client and @hey-api/openapi-ts: each has
# all operations of the document, passes a type checker, and calls a `tokentap demo`. The commands in docs/api/control.md name the same versions.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3, 3.11 or later)
# Builds nothing. The generators are installed once in target/openapi, which needs package registries and npm.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(realpath "$here/../..")
source "$root/tests/common.sh"
tokentap=$(realpath "$(find_tokentap "$root")")
export PYTHONDONTWRITEBYTECODE=1

tested=$(grep '^openapi-python-client==' "$here/requirements.txt"
  sed -nE 's/^ *"(@hey-api\/openapi-ts|typescript)": "(.*)".*/\1@\2/p' "$here/package.json")
page=$(grep -oE '(openapi-python-client==|@hey-api/openapi-ts@|typescript@)[^ ]+' "$root/docs/api/control.md" || true)
if [[ $tested != "$page" ]]; then
  printf 'docs/api/control.md names the versions\n%s\nand these are tested\n%s\n' "$page" "$tested" >&2
  exit 1
fi

home=$root/target/openapi
mkdir -p "$home"
python_environment "$home/venv" "$here/requirements.txt"
stamp="$(node --version) $(cat "$here/package.json" "$here/package-lock.json" | cksum)"
if [[ "$(cat "$home/stamp" 2>/dev/null)" != "$stamp" ]]; then
  cp "$here/package.json" "$here/package-lock.json" "$home"
  (cd "$home" && npm ci --silent --no-audit --no-fund --ignore-scripts)
  echo "$stamp" >"$home/stamp"
fi
# openapi-python-client runs ruff
export PATH=$home/venv/bin:$home/node_modules/.bin:$PATH

demo=''
trap 'if [[ $demo ]]; then kill "$demo" 2>/dev/null; wait "$demo" || true; fi; rm -rf "$home/work"' EXIT
trap 'exit 130' INT TERM
rm -rf "$home/work"
mkdir "$home/work"
cd "$home/work"
"$tokentap" demo --listen 127.0.0.1:0 --control-listen 127.0.0.1:0 --control-token secret >demo 2>&1 &
demo=$!
for _ in $(seq 300); do
  if grep -q '^Metrics:' demo || ! kill -0 "$demo" 2>/dev/null; then break; fi
  sleep 0.1
done
data=$(grep -oEm1 'http://[0-9.:]+/generate' demo | grep -oE 'http://[0-9.:]+') || true
control=$(grep -oEm1 'http://[0-9.:]+/v1' demo | grep -oE 'http://[0-9.:]+') || true
if [[ ! $data || ! $control ]]; then cat demo; echo "the demo did not start" >&2; exit 1; fi
curl -sSf "$control/openapi.json" -o openapi.json

# openapi-python-client knows no JSON Lines: its option for such types reads them as text
printf 'content_type_overrides:\n  application/x-ndjson: text/plain\n' >generator.yaml
openapi-python-client generate --fail-on-warning --config generator.yaml --path openapi.json --output-path tokentap_client --meta none >python.log 2>&1 ||
  { cat python.log; exit 1; }
openapi-ts --input openapi.json --output tokentap-client >typescript.log 2>&1 || { cat typescript.log; exit 1; }
if grep -iE 'warn|error|skip' python.log typescript.log; then echo "a generator warns" >&2; exit 1; fi
python "$here/generated.py" openapi.json tokentap_client tokentap-client/sdk.gen.ts

# client.py of the generated package is equal for every document
printf '[mypy]\nstrict = True\n[mypy-tokentap_client.client]\nignore_errors = True\n' >mypy.ini
cp "$here/client.py" "$here/client.ts" .
python -m mypy --no-error-summary --cache-dir "$home/mypy" -p tokentap_client
python -m mypy --no-error-summary --cache-dir "$home/mypy" client.py
tsc --strict --target es2022 --module commonjs --lib es2022,dom,dom.iterable --outDir out client.ts tokentap-client/index.ts
timeout 60 python client.py "$data" "$control" secret
timeout 60 node out/client.js "$data" "$control" secret
record_passed openapi-python-client "$(package_version python openapi-python-client)" "bash tests/openapi/run.sh"
record_passed @hey-api/openapi-ts "$(node -p 'require(process.argv[1]).version' "$home/node_modules/@hey-api/openapi-ts/package.json")" "bash tests/openapi/run.sh"
