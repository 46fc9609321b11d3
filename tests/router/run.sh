#!/usr/bin/env bash
# sglang-router downstream and upstream of tokentap; the engines are those of `tokentap demo`.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. The router is installed once in target/router, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tokentap=${TOKENTAP:-}
for build in release debug; do
  if [[ ! $tokentap && -x $root/target/$build/tokentap ]]; then tokentap=$root/target/$build/tokentap; fi
done
if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; exit 2; fi
export PYTHONDONTWRITEBYTECODE=1
venv=$root/target/router list=$here/requirements.txt
stamp="$("${PYTHON:-python3}" -V) $(cksum <"$list")"
if [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list"
  echo "$stamp" >"$venv/stamp"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
timeout 300 "$venv/bin/python" "$here/both_ways.py" --tokentap "$tokentap" --work "$work"
