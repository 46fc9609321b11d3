#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The compose profile `fleet` without containers: a Valkey with a replica, an S3, three demos, and HAProxy with the profile's own configuration.
# agent.py talks to the load balancer only, and checks what every replica has.
#   TOKENTAP        the binary (target/release/tokentap, else target/debug/tokentap)
#   VALKEY_SERVER   valkey-server, or redis-server 7 (the one on the PATH)
#   HAPROXY         haproxy (the one on the PATH)
#   PYTHON          the interpreter (python3)
# The S3 is moto's, in target/archive, which needs PyPI the first time.
# Linux only: the replicas use three loopback addresses, because they have one port.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
valkey=${VALKEY_SERVER:-$(command -v valkey-server || command -v redis-server)}
haproxy=${HAPROXY:-$(command -v haproxy)}
export PYTHONDONTWRITEBYTECODE=1
venv=$root/target/archive/short
mkdir -p "$root/target/archive"
python_environment "$venv" "$root/tests/archive/requirements.txt"

work=$(mktemp -d)
started=()
stop() {
  for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; done
  wait
  rm -rf "$work"
}
trap stop EXIT
trap 'exit 130' INT TERM

# await PID FILE PATTERN: waits until FILE has a matching line; fails if the process PID, which writes it, has ended
await() {
  local pid=$1 file=$2 pattern=$3
  for _ in $(seq 300); do
    if grep -qsE "$pattern" "$file"; then return; fi
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.1
  done
  cat "$file" >&2
  echo "no line like $pattern" >&2
  exit 1
}

# all replicas have the port 30001, so each has its own loopback address; the last number is of this process
network=127.$((RANDOM % 200 + 20)).$((RANDOM % 250))
mapfile -t ports < <(python3 -c 'import socket
all = [socket.create_server(("127.0.0.1", 0)) for _ in range(5)]
for one in all: print(one.getsockname()[1])')

# the settings of docker-compose.yml
mkdir "$work/primary" "$work/replica"
settings=(--bind 127.0.0.1 --appendonly yes --maxmemory-policy noeviction)
"$valkey" --port "${ports[0]}" --dir "$work/primary" "${settings[@]}" >"$work/primary.log" &
primary=$!
started+=("$primary")
await "$primary" "$work/primary.log" 'Ready to accept connections'
"$valkey" --port "${ports[1]}" --dir "$work/replica" "${settings[@]}" --replicaof 127.0.0.1 "${ports[0]}" >"$work/replica.log" &
started+=($!)
await $! "$work/replica.log" 'REPLICA sync: Finished with success'

"$venv/bin/moto_server" --host 127.0.0.1 --port "${ports[4]}" >"$work/s3.log" 2>&1 &
started+=($!)
await $! "$work/s3.log" 'Running on'
export AWS_ENDPOINT_URL=http://127.0.0.1:${ports[4]} AWS_REGION=us-east-1 AWS_ACCESS_KEY_ID=none AWS_SECRET_ACCESS_KEY=none
curl -sSf -o /dev/null -X PUT "$AWS_ENDPOINT_URL/rollouts"

replicas=()
for number in 1 2 3; do
  "$tokentap" demo --listen "$network.$number:30001" --control-listen "$network.$number:30002" --data-dir "$work/data$number" \
    --ledger "redis://127.0.0.1:${ports[0]}" --archive s3://rollouts/demo --archive-interval 2s >"$work/demo$number" 2>&1 &
  replicas+=($!)
  started+=($!)
done
for number in 1 2 3; do await "${replicas[number - 1]}" "$work/demo$number" '^ *Metrics:|Metrics: http'; done

DATA=127.0.0.1:${ports[2]} CONTROL=127.0.0.1:${ports[3]} REPLICA_1=$network.1 REPLICA_2=$network.2 REPLICA_3=$network.3 \
  "$haproxy" -f "$root/deploy/fleet/haproxy.cfg" >"$work/haproxy.log" 2>&1 &
started+=($!)
python3 "$here/agent.py" --data "127.0.0.1:${ports[2]}" --control "127.0.0.1:${ports[3]}" --replicas "$network.1" "$network.2" "$network.3" \
  --kill "${replicas[1]}" --tokentap "$tokentap" --archive s3://rollouts/demo || { tail -n 20 "$work"/*.log "$work"/demo?; exit 1; }
record_passed Valkey "$("$valkey" --version | sed -nE 's/^(Redis|Valkey) server v=([0-9.]+).*/\1 \2/p')" "bash tests/compose/run.sh"
record_passed HAProxy "$("$haproxy" -v | sed -nE '1s/.*version ([^ ]+).*/\1/p')" "bash tests/compose/run.sh"
