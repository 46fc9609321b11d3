#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Render every conversation with every template by transformers, and compare the results with expected/.
#   run.sh            fetch, record into a temporary folder, compare; then tokentap's own rendering
#   run.sh --record   fetch, and write expected/ again
# PYTHON names the interpreter (3.11 or newer). Needs npm, the network once, and 600 MB below target/.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
fetched=$root/target/templates venv=$root/target/templates-venv
stamp=$(cksum <"$here/requirements.txt")

if [[ "$(cat "$venv/complete" 2>/dev/null)" != "$stamp" ]]; then
  "${PYTHON:-python3}" -m venv --clear "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: -r "$here/requirements.txt"
  echo "$stamp" >"$venv/complete"
fi
"$venv/bin/python" "$here/fetch.py" --into "$fetched"

if [[ ${1:-} == --record ]]; then
  rm -rf "$here/expected" "$fetched/rendered"
  "$venv/bin/python" "$here/encodings.py" --from "$fetched"
  exec "$venv/bin/python" "$here/record.py" --from "$fetched" --texts "$fetched/rendered"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$venv/bin/python" "$here/record.py" --from "$fetched" --into "$work" --texts "$fetched/rendered"
diff -r "$here/expected" "$work"
echo "expected/ matches transformers"
"$venv/bin/python" "$here/encodings.py" --from "$fetched" --into "$work/encodings.json"
diff "$here/encodings.json" "$work/encodings.json"
echo "encodings.json matches DeepSeek's encoders"

cd "$root"
TEMPLATES=$fetched cargo test --test templates -- --include-ignored --nocapture --test-threads 1
record_passed transformers "$(package_version "$venv/bin/python" transformers)" "bash tests/templates/run.sh"
