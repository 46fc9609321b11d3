#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs tokentap under load and attack, one load after the other, each bounded in time, and prints the measurements.
#   TOKENTAP   the binary (else the one that cargo builds with the bench)
#   run.sh [NAME [NUMBER]]…   runs only these loads: idle streams control slow flood soak (benches/load.rs explains the numbers)
# slowhttptest and h2load are in Debian's packages slowhttptest and nghttp2-client; they are installed if missing and permitted.
set -euo pipefail
cd "$(dirname "$0")/../.."

need() {
  command -v "$1" >/dev/null && return
  if [[ $(id -u) == 0 ]] && command -v apt-get >/dev/null; then apt-get install -y -q "$2" >/dev/null && return; fi
  echo "no $1: install $2" >&2
  exit 2
}
need slowhttptest slowhttptest
need h2load nghttp2-client

# ten thousand connections need as many descriptors in each process
ulimit -n "$(ulimit -H -n)"
descriptors=$(ulimit -n)
if [[ $descriptors != unlimited && $descriptors -lt 11000 ]]; then
  echo "only $descriptors descriptors: idle needs 11000 (ulimit -H -n)" >&2
  exit 2
fi

loads=("$@")
if [[ ${#loads[@]} == 0 ]]; then loads=(idle streams control slow flood); fi
run() { timeout 7200 cargo bench --quiet --bench load -- "$@"; }
at=0
while [[ $at -lt ${#loads[@]} ]]; do
  name=${loads[$at]} number=${loads[$((at + 1))]:-}
  if [[ $number =~ ^[0-9]+$ ]]; then at=$((at + 2)); else number= at=$((at + 1)); fi
  run "$name" ${number:+"$number"}
done
