#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# deploy/systemd/tokentap.service: systemd accepts it, and its exposure is at most 1.5 of 10. Needs the programs of systemd 250 or newer, not a
# running systemd; passes without them, and says so.
#   systemd.sh TOKENTAP
set -euo pipefail
if ! command -v systemd-analyze >/dev/null; then
  echo "systemd: not checked, because there is no systemd-analyze"
  exit
fi
read -r _ version _ < <(systemd-analyze --version)
# 252, or 250-rc1
if ((${version//[!0-9]*/} < 250)); then
  echo "systemd: not checked, because the unit needs systemd 250, and systemd-analyze is of $version"
  exit
fi
unit=$(dirname "$0")/../systemd/tokentap.service
# a path without white space, which ExecStart= would split
work=$(TMPDIR=/tmp mktemp -d)
trap 'rm -rf "$work"' EXIT
# the binary of this machine instead of the installed one
cp "$1" "$work/tokentap"
sed "s#^ExecStart=/usr/local/bin/tokentap #ExecStart=$work/tokentap #" "$unit" >"$work/tokentap.service"
# it also verifies the units of this machine on which the unit depends, and fails with them
systemd-analyze verify --man=no "$work/tokentap.service" >"$work/complaints" 2>&1 || true
if grep -F tokentap.service "$work/complaints"; then exit 1; fi

setting() { sed -nE "s/^$1([0-9]+)s?\$/\1/p" "$unit"; }
if (($(setting TimeoutStopSec=) <= $(setting Environment=TOKENTAP_DRAIN_TIMEOUT=))); then
  echo "$unit: systemd kills tokentap before it has drained" >&2
  exit 1
fi
systemd-analyze security --offline=true --threshold=15 --no-pager "$work/tokentap.service" | tail -n 1
