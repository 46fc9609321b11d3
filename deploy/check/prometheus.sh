#!/usr/bin/env bash
# Debian's Prometheus and promtool, unpacked into a folder; needs Debian's packages, and root only where their list is older than they are.
#   prometheus.sh FOLDER
set -euo pipefail
to=$1
if ! command -v apt-get >/dev/null; then
  echo "no promtool on the PATH, and no apt-get to fetch Debian's: install Prometheus" >&2
  exit 1
fi
mkdir -p "$to"
to=$(cd "$to" && pwd)
from=$(mktemp -d)
trap 'rm -rf "$from"' EXIT
cd "$from"
fetch() { apt-get download -qq -o APT::Sandbox::User=root prometheus; }
# a list that is missing or old names a file that is not there
fetch 2>/dev/null || { apt-get update -qq && fetch; }
dpkg -x prometheus_*.deb "$to"
