#!/usr/bin/env bash
# run.sh [NAME...]   runs released agents and SDKs through tokentap with a scripted engine. NAMEs are those of clients.py; default: all.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3), 3.11 or newer
# Builds nothing. The clients are installed once into target/clients, in the versions of the requirements and package-lock.json. Only the
# installation needs PyPI and npm. Node 20 or newer is needed as well. Exit status 1 if a client failed.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tokentap=${TOKENTAP:-}
for build in release debug; do
  if [[ ! $tokentap && -x $root/target/$build/tokentap ]]; then tokentap=$root/target/$build/tokentap; fi
done
if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; exit 2; fi
python=${PYTHON:-python3}
tools=$root/target/clients
export PYTHONDONTWRITEBYTECODE=1

# Two of the frameworks need an older openai package, so there are three environments.
for name in python strands litellm; do
  list=$here/requirements-$name.txt venv=$tools/$name
  stamp="$("$python" -V) $(cksum <"$list")"
  if [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
    echo "clients: installing $venv" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv"
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: -r "$list"
    echo "$stamp" >"$venv/stamp"
  fi
done
stamp="$(node --version) $(cat "$here/package.json" "$here/package-lock.json" | cksum)"
if [[ "$(cat "$tools/npm/stamp" 2>/dev/null)" != "$stamp" ]]; then
  echo "clients: installing $tools/npm" >&2
  rm -rf "$tools/npm"
  mkdir -p "$tools/npm"
  cp "$here/package.json" "$here/package-lock.json" "$tools/npm"
  # npm ci rejects a lock file without the binaries of all other platforms; the packages that need binaries pin those of this platform.
  (cd "$tools/npm" && npm install --no-save --loglevel error --no-audit --no-fund --ignore-scripts)
  echo "$stamp" >"$tools/npm/stamp"
fi
# Node looks for packages in the parent folders of the importing file.
rm -rf "$tools/npm/agents"
mkdir "$tools/npm/agents"
cp "$here"/agents/*.mjs "$tools/npm/agents"

exec timeout 1200 "$tools/python/bin/python" "$here/check.py" --tokentap "$tokentap" --tools "$tools" "$@"
