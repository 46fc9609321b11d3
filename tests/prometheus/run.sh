#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A real Prometheus (Debian's) with deploy/prometheus scrapes a tokentap under load. Every recording rule and every query of the dashboard
# must have data, except those that ask.py lists with the reason.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3); only its standard library is used
# Builds nothing. Unless Prometheus is on the PATH, it is unpacked once into target/deploy, which needs Debian's packages.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
python=${PYTHON:-python3}
export PYTHONDONTWRITEBYTECODE=1

prometheus=$(bash "$root/deploy/check/prometheus.sh" "$root/target/deploy/prometheus" promtool prometheus)

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

# Small stores, so that they evict; few requests at once, so that some are refused; and no file larger than 256 KiB, so that the log
# fails as it does on a full disk.
(
  ulimit -f 256
  exec "$tokentap" demo --listen 127.0.0.1:0 --control-listen 127.0.0.1:0 --log warn --data-dir "$work/data" \
    --max-requests 4 --session-bytes 64KiB --chat-limits turns=2
) >"$work/demo" 2>&1 &
started+=($!)
await $! "$work/demo" '^ *Metrics:'
data=$(grep -oEm1 'http://[0-9.:]+/generate' "$work/demo" | grep -oE '[0-9.]+:[0-9]+')
control=$(grep -oEm1 'http://[0-9.:]+/metrics' "$work/demo" | grep -oE '[0-9.]+:[0-9]+')

# The recorded replies of a real SGLang, with a second tokentap in front of it, as in Kubernetes: SGLang's metrics, a chat, and a
# truncated stream.
"$python" "$here/recorded.py" "$root/tests/fixtures/sglang-0.5.23/default" >"$work/recorded" 2>&1 &
started+=($!)
await $! "$work/recorded" '^127'
"$tokentap" serve --listen 127.0.0.1:0 --control-listen 127.0.0.1:0 --log-format json --upstream "http://$(cat "$work/recorded")" \
  >"$work/serve" 2>&1 &
started+=($!)
await $! "$work/serve" '"data":"http'
sglang=$(grep -oEm1 '"data":"http://[0-9.:]+' "$work/serve" | grep -oE '[0-9.]+:[0-9]+')
sidecar=$(grep -oEm1 '"control":"http://[0-9.:]+' "$work/serve" | grep -oE '[0-9.]+:[0-9]+')

# the deployed files, unchanged; the addresses of the targets are added in separate files
cp -r "$root/deploy/prometheus" "$work/prometheus"
mkdir "$work/prometheus/targets"
echo "- targets: ['$control', '$sidecar']" >"$work/prometheus/targets/tokentap.yml"
echo "- targets: ['$sglang']" >"$work/prometheus/targets/sglang.yml"
port=$("$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
"$prometheus/prometheus" --config.file="$work/prometheus/prometheus.yml" --storage.tsdb.path="$work/series" --web.listen-address="127.0.0.1:$port" \
  --log.level=info >"$work/prometheus.log" 2>&1 &
started+=($!)
await $! "$work/prometheus.log" 'Server is ready to receive web requests'

"$python" "$here/load.py" --data "$data" --control "$control" --recorded "$sglang" --seconds 200 >"$work/load" 2>&1 &
load=$!
started+=("$load")
if ! timeout 240 "$python" "$here/ask.py" --prometheus "127.0.0.1:$port" --dashboard "$root/deploy/grafana/dashboards/tokentap.json"; then
  tail -20 "$work/load" >&2
  exit 1
fi
kill -0 "$load" 2>/dev/null || { cat "$work/load" >&2; echo "the load ended early" >&2; exit 1; }
"$python" -c 'import sys, urllib.request; sys.stdout.buffer.write(urllib.request.urlopen(sys.argv[1]).read())' "http://$control/metrics" \
  | "$prometheus/promtool" check metrics
echo "promtool accepts the names and types of the metrics"
found=$("$prometheus/prometheus" --version 2>&1 | sed -nE 's/^prometheus, version ([0-9.]+).*/\1/p')
record_passed Prometheus "$found" "bash tests/prometheus/run.sh"
