#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the folder of prometheus and promtool: the one on the PATH, else Debian's package, unpacked once into a folder. That needs Debian's
# mirrors, and root only if the package list is outdated. Prints the version on stderr and fails if it is too old for the rules.
#   prometheus.sh FOLDER [PROGRAM...]   PROGRAM: a required program (promtool)
set -euo pipefail
# the version of Debian 12, with which the rules are tested, and the first with keep_firing_for
oldest=2.42.0
to=$1
shift
needed=("${@:-promtool}")

# unpacked, not installed: the package would start a server
unpack() {
  if ! command -v apt-get >/dev/null; then
    echo "no prometheus and promtool on the PATH, and no apt-get to fetch Debian's: install Prometheus" >&2
    exit 1
  fi
  mkdir -p "$to"
  from=$(mktemp -d)
  trap 'rm -rf "$from"' EXIT
  fetch() { (cd "$from" && apt-get download -qq -o APT::Sandbox::User=root prometheus); }
  # a missing or outdated package list refers to a file that does not exist
  fetch 2>/dev/null || { apt-get update -qq && fetch; }
  dpkg -x "$from"/prometheus_*.deb "$to"
}

found=$(command -v promtool || true)
bin=${found%/*}
for program in "${needed[@]}"; do
  if [[ ! -x $bin/$program ]]; then bin=; fi
done
if [[ -z $bin ]]; then
  bin=$to/usr/bin
  if [[ ! -x $bin/promtool ]]; then unpack >&2; fi
fi
version=$("$bin/promtool" --version 2>&1 | sed -nE 's/^promtool, version ([0-9.]+).*/\1/p')
echo "promtool: ${version:-unknown version}, $bin" >&2
if [[ $(printf '%s\n' "$oldest" "${version:-0}" | sort -V | head -n 1) != "$oldest" ]]; then
  echo "the rules need $oldest or newer: another Prometheus on the PATH, or none and a newer Debian" >&2
  exit 1
fi
echo "$bin"
