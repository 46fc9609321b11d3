#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The recipes of deploy/cluster with a real Slurm and a real Ray, on one node and on two, with tokentap's demo in place of SGLang and rank.py in
# place of a trainer: run.sh [slurm|ray]
# Each node is a network namespace with its own loopback. Needs root, and for Slurm Debian's slurmctld, slurmd, slurm-client and munge.
#   TOKENTAP   the binary
# Ray is installed in target/cluster, which needs a package registry.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
mkdir -p "$root/target/cluster"
kinds=("$@")
if ((!${#kinds[@]})); then kinds=(slurm ray); fi

for kind in "${kinds[@]}"; do
  case $kind in
    slurm)
      for program in slurmctld slurmd sbatch munged; do
        if ! command -v $program >/dev/null; then echo "no $program: apt-get install slurmctld slurmd slurm-client munge" >&2; exit 2; fi
      done ;;
    ray) python_environment "$root/target/cluster/ray" "$here/requirements.txt" ;;
    *) echo "run.sh: $kind is neither slurm nor ray" >&2; exit 64 ;;
  esac
  work=$(mktemp -d)
  mkdir "$work/bin"
  # its log is in a file, because those of Slurm and Ray come late
  printf '#!/bin/sh\nexec "%s" "$@" >>"%s/log" 2>&1\n' "$tokentap" "$work" >"$work/bin/tokentap"
  chmod 755 "$work/bin/tokentap"
  # processes, networks and mounts of the trial end with its namespaces
  export work here root
  export PATH=$work/bin:$root/target/cluster/ray/bin:$PATH
  if ! timeout 900 unshare --mount --net --pid --ipc --uts --fork --kill-child --mount-proc bash "$here/$kind.sh"; then
    echo "logs: $work" >&2
    exit 1
  fi
  rm -rf "$work"
  case $kind in
    slurm) record_passed Slurm "$(slurmctld -V | cut -d ' ' -f 2)" "bash tests/cluster/run.sh slurm" ;;
    ray) record_passed Ray "$(package_version "$root/target/cluster/ray/bin/python" ray)" "bash tests/cluster/run.sh ray" ;;
  esac
done
