# SPDX-License-Identifier: Apache-2.0
# Sourced by slurm.sh and ray.sh, in namespaces of their own: two nodes, node1 and node2, which reach each other.
mount -t tmpfs -o mode=755 tmpfs /run
ip link set lo up
ip link add bridge type bridge
ip addr add 10.77.0.254/24 dev bridge
ip link set bridge up
printf '127.0.0.1 localhost\n10.77.0.254 controller\n10.77.0.1 node1\n10.77.0.2 node2\n' >"$work/hosts"
mount --bind "$work/hosts" /etc/hosts
for number in 1 2; do
  ip netns add "node$number"
  ip link add "to$number" type veth peer name eth0 netns "node$number"
  ip link set "to$number" master bridge up
  ip -n "node$number" addr add "10.77.0.$number/24" dev eth0
  ip -n "node$number" link set eth0 up
  ip -n "node$number" link set lo up
  ip -n "node$number" route add default via 10.77.0.254
done

# on NODE COMMAND...: runs it as if on that node
on() {
  local node=$1
  shift
  # shellcheck disable=SC2016
  nsenter --net="/run/netns/$node" unshare --uts bash -c 'hostname "$0"; exec "$@"' "$node" "$@"
}

# await COMMAND...: until it succeeds, for at most a minute
await() {
  for _ in $(seq 120); do
    if "$@" >/dev/null 2>&1; then return; fi
    sleep 0.5
  done
  echo "timeout: $*" >&2
  "$@" >&2 || true
  exit 1
}
# one argument a line, as in a script
export ENGINE=$'tokentap demo --listen 127.0.0.1:30000\n  --control-listen 127.0.0.1:0'
unset OMP_NUM_THREADS MASTER_PORT

# occupy NODE: another job's tokentap serves the ports there, with another token
occupy() {
  on "$1" tokentap demo --listen 0.0.0.0:30001 --control-listen 0.0.0.0:30002 --control-host "$1" --control-token other &
  await curl -fsS --noproxy '*' "http://$1:30002/readyz"
}

# check TITLE OUTPUT NODES STATUS: the ranks of a job found each other's sessions, and each tokentap finished
check() {
  local title=$1 output=$2 nodes=$3 status=$4 found drained
  found=$(cat "$work"/found-* 2>/dev/null | wc -l)
  drained=$(grep -c ' drained' "$work/log" || true)
  # a second signal would end the running generations
  if ((status != 0 || found != nodes || drained < nodes)) || grep -q 'running requests are ended' "$work/log"; then
    cat "$output" "$work/log" >&2
    echo "FAIL $title: exit code $status, $found ranks, $drained tokentaps drained" >&2
    exit 1
  fi
  rm "$work"/found-* "$work/log"
  echo "ok   $title"
}
