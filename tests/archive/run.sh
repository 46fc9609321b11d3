#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The archive in S3 of servers that others wrote, moto and s3s-fs, and in a folder, read with tokentap.dataset and with the examples.
#   run.sh short   moto only, without the examples, which CI runs
#   run.sh faulty  moto behind a proxy that refuses, delays and breaks 30 % of the requests, for each of SEEDS (1 2 3)
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3)
#   S3S_FS     the binary s3s-fs (built in target/archive, which needs rustc 1.92)
# Builds no tokentap. The environment is made once in target/archive, which needs package registries.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
mode=${1:-full}
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONPATH=$root/python/tokentap

home=$root/target/archive
venv=$home/${mode/faulty/short}
mkdir -p "$home"
list=$here/requirements.txt
if [[ $mode == full ]]; then list=$here/requirements-readers.txt; fi
python_environment "$venv" "$list"

python=$venv/bin/python
check=("$python" "$here/check.py" --tokentap "$tokentap")
if [[ $mode == short ]]; then
  timeout 120 "${check[@]}" --server moto
  record_passed 'moto (S3)' "$(package_version "$python" moto)" "bash tests/archive/run.sh short"
  exit
fi
if [[ $mode == faulty ]]; then
  for seed in ${SEEDS:-1 2 3}; do timeout 600 "${check[@]}" --server faulty --seed "$seed"; done
  exit
fi
s3s=${S3S_FS:-$home/s3s/bin/s3s-fs}
if [[ ! -x $s3s ]]; then
  CARGO_TARGET_DIR=$home/s3s/target cargo install --quiet s3s-fs --version 0.14.1 --features binary --locked --root "$home/s3s"
fi
timeout 300 "${check[@]}" --server folder --examples "$root/python/examples"
timeout 300 "${check[@]}" --server moto
timeout 600 "${check[@]}" --server faulty
timeout 300 "${check[@]}" --server s3s-fs --s3s "$s3s"
record_passed 'moto (S3)' "$(package_version "$python" moto)" "bash tests/archive/run.sh"
if [[ ! ${S3S_FS:-} ]]; then record_passed 's3s-fs (S3)' "$("$s3s" --version)" "bash tests/archive/run.sh"; fi
