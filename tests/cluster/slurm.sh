# SPDX-License-Identifier: Apache-2.0
# Started by run.sh.
set -euo pipefail
source "$here/nodes.sh"
mkdir -p /run/munge "$work/munge" "$work/state"
chmod 711 "$work"
chown munge: /run/munge "$work/munge"
(umask 077; head -c 1024 /dev/urandom >"$work/munge/key"; chown munge: "$work/munge/key")
# the sockets of the programs of all nodes
runuser -u munge -- munged --key-file="$work/munge/key" --log-file="$work/munge/log" --pid-file="$work/munge/pid" --seed-file="$work/munge/seed" --force
cat >"$work/slurm.conf" <<CONF
ClusterName=trial
SlurmctldHost=controller(10.77.0.254)
SlurmUser=root
AuthType=auth/munge
CryptoType=crypto/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/%n
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/%n.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerNode=10
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=10
NodeName=node1 NodeAddr=10.77.0.1 CPUs=2 RealMemory=1000 State=UNKNOWN
NodeName=node2 NodeAddr=10.77.0.2 CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=all Nodes=node1,node2 Default=YES MaxTime=10 State=UP
CONF
export SLURM_CONF=$work/slurm.conf
hostname controller
slurmctld
for node in node1 node2; do
  mkdir "$work/$node"
  on $node slurmd -N $node
done
await bash -c '[[ $(sinfo -h -t idle -o %D) == 2 ]]'

cd "$root"
# the recipes reach nodes without it
export http_proxy=http://127.0.0.1:9
for nodes in 1 2; do
  status=0
  export DATA=$work/data$nodes
  sbatch --wait --nodes=$nodes --output="$work/job$nodes" deploy/cluster/tokentap.sbatch python3 "$here/rank.py" >/dev/null || status=$?
  check "Slurm, $nodes node(s)" "$work/job$nodes" $nodes $status
done
if [[ $(scontrol show job 1) != *=cpu=2,mem=1000M,* ]]; then scontrol show job 1 >&2; echo "FAIL Slurm, not the CPUs and the memory of a whole node" >&2; exit 1; fi
status=0
FAIL_RANK=1 sbatch --wait --nodes=2 --output="$work/failed" deploy/cluster/tokentap.sbatch python3 "$here/rank.py" >/dev/null || status=$?
if ((status == 0)) || [[ $(squeue -h) ]] || ! grep -q "task 1: Exited with exit code 3" "$work/failed"; then cat "$work/failed" >&2; echo "FAIL Slurm, a rank that fails: exit code $status" >&2; exit 1; fi
echo "ok   Slurm, a rank that fails ends the job"
status=0
ENGINE="sleep 1" sbatch --wait --nodes=2 --output="$work/engine" deploy/cluster/tokentap.sbatch python3 "$here/rank.py" >/dev/null || status=$?
if ((status != 1)) || ! grep -q 'the engine or tokentap of node. has ended' "$work/engine"; then cat "$work/engine" >&2; echo "FAIL Slurm, an engine that ends: $status" >&2; exit 1; fi
echo "ok   Slurm, an engine that ends the job"
# all programs but curl
mkdir "$work/programs"
IFS=: read -ra folders <<<"$PATH"
for folder in "${folders[@]}"; do ln -st "$work/programs" "$folder"/* 2>/dev/null || true; done
rm "$work/programs/curl"
status=0
PATH=$work/programs START_SECONDS=20 sbatch --wait --nodes=1 --output="$work/curl" deploy/cluster/tokentap.sbatch true >/dev/null || status=$?
if ((status != 64)) || ! grep -q 'curl is missing on node.' "$work/curl"; then
  cat "$work/curl" >&2
  echo "FAIL Slurm, a node without curl: $status" >&2
  exit 1
fi
echo "ok   Slurm, a node without curl ends the job"
occupy node1
status=0
sbatch --wait --nodes=1 --nodelist=node1 --output="$work/occupied" deploy/cluster/tokentap.sbatch touch "$work/started" >/dev/null || status=$?
kill $!
if ((status != 1)) || [[ -e $work/started ]]; then cat "$work/occupied" >&2; echo "FAIL Slurm, a node with another tokentap: $status" >&2; exit 1; fi
echo "ok   Slurm, no rank starts at another job's tokentap"
