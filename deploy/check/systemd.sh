#!/usr/bin/env bash
# deploy/systemd/tokentap.service: systemd accepts it, and its exposure is at most 1.5 of 10. Needs systemd's programs, not a running systemd.
#   systemd.sh TOKENTAP
set -euo pipefail
if ! command -v systemd-analyze >/dev/null; then
  echo "no systemd-analyze: install systemd, which need not run" >&2
  exit 1
fi
unit=$(dirname "$0")/../systemd/tokentap.service
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# the binary of this machine instead of the installed one
sed "s#^ExecStart=/usr/local/bin/tokentap #ExecStart=$(realpath "$1") #" "$unit" >"$work/tokentap.service"
systemd-analyze verify --man=no "$work/tokentap.service" 2>&1 | tee "$work/complaints"
if [[ -s $work/complaints ]]; then exit 1; fi

setting() { sed -nE "s/^$1([0-9]+)s?\$/\1/p" "$unit"; }
if (($(setting TimeoutStopSec=) <= $(setting Environment=TOKENTAP_DRAIN_TIMEOUT=))); then
  echo "$unit: systemd kills tokentap before it has drained" >&2
  exit 1
fi
systemd-analyze security --offline=true --threshold=15 --no-pager "$work/tokentap.service" | tail -n 1
