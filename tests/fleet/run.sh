#!/usr/bin/env bash
# Three tokentaps share sessions through a real Valkey or Redis, while processes are killed and stopped and connections are cut.
#   run.sh ci              about 15 seconds: one server, SIGKILL of a tokentap, restart of the server with its append-only file
#   run.sh                 SEEDS histories of T seconds for each of TOPOLOGY
#   SEEDS      seeds, as FIRST-LAST or one number (1-20)
#   T          seconds of a history (40)
#   TOPOLOGY   single, replica, sentinel, cluster, tls, or several with commas (all)
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. Valkey is installed once in target/fleet, which needs a package registry. `tls` needs redis-server and openssl.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tokentap=${TOKENTAP:-}
for build in release debug; do
  if [[ ! $tokentap && -x $root/target/$build/tokentap ]]; then tokentap=$root/target/$build/tokentap; fi
done
if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; exit 2; fi
export PYTHONDONTWRITEBYTECODE=1
venv=$root/target/fleet list=$here/requirements.txt
stamp="$("${PYTHON:-python3}" -V) $(cksum <"$list")"
if [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
  rm -rf "$venv"
  "${PYTHON:-python3}" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: -r "$list"
  echo "$stamp" >"$venv/stamp"
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ ${1:-} == ci ]]; then
  timeout 120 "$venv/bin/python" "$here/fleet.py" --tokentap "$tokentap" --work "$work" --ci
else
  "$venv/bin/python" "$here/fleet.py" --tokentap "$tokentap" --work "$work" --seeds "${SEEDS:-1-20}" --seconds "${T:-40}" \
    --topologies "${TOPOLOGY:-single,replica,sentinel,cluster,tls}"
fi
