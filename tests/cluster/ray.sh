# SPDX-License-Identifier: Apache-2.0
# Started by run.sh.
set -euo pipefail
source "$here/nodes.sh"
# no usage report leaves the machine
# on a busy machine a node takes longer than half a minute to start
export RAY_raylet_start_wait_time_s=180 RAY_USAGE_STATS_ENABLED=0 RAY_ADDRESS=10.77.0.1:6379
settings=(--num-cpus 4 --num-gpus 1 --object-store-memory 100000000 --temp-dir "$work/ray" --disable-usage-stats)
on node1 ray start --head --node-ip-address 10.77.0.1 --port 6379 --include-dashboard false "${settings[@]}" >"$work/head" 2>&1
on node2 ray start --address 10.77.0.1:6379 --node-ip-address 10.77.0.2 "${settings[@]:0:6}" --disable-usage-stats >"$work/worker" 2>&1

# the recipes reach nodes without it
export http_proxy=http://127.0.0.1:9
for nodes in 1 2; do
  status=0
  export DATA=$work/data$nodes
  on node1 python "$root/deploy/cluster/ray_job.py" --nodes $nodes -- python3 "$here/rank.py" >"$work/job$nodes" 2>&1 || status=$?
  check "Ray, $nodes node(s)" "$work/job$nodes" $nodes $status
done
status=0
# rank 0 ignores SIGTERM
# shellcheck disable=SC2016
on node1 python "$root/deploy/cluster/ray_job.py" --nodes 2 -- bash -c 'if ((RANK)); then exit 3; fi; trap "" TERM; exec sleep infinity' >"$work/failed" 2>&1 || status=$?
if ((status != 1)) || ! grep -q 'a rank has ended with 3' "$work/failed"; then cat "$work/failed" >&2; echo "FAIL Ray, a rank that fails: $status" >&2; exit 1; fi
echo "ok   Ray, a rank that fails ends the job"

status=0
on node1 python "$root/deploy/cluster/ray_job.py" --nodes 3 --start-seconds 1 -- touch "$work/started" >"$work/large" 2>&1 || status=$?
if ((status != 1)) || ! grep -q "no 3 nodes with {'CPU': 2, 'GPU': 1} in 1 s" "$work/large"; then cat "$work/large" >&2; echo "FAIL Ray, more nodes than exist: $status" >&2; exit 1; fi
echo "ok   Ray, more nodes than exist"
occupy node1
status=0
on node1 python "$root/deploy/cluster/ray_job.py" --nodes 2 -- touch "$work/started" >"$work/occupied" 2>&1 || status=$?
kill $!
if ((status != 1)) || [[ -e $work/started ]] || ! grep -q 'a server has ended' "$work/occupied"; then cat "$work/occupied" >&2; echo "FAIL Ray, a node with another tokentap: $status" >&2; exit 1; fi
echo "ok   Ray, no rank starts at another job's tokentap"
