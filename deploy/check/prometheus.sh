#!/usr/bin/env bash
# The folder of prometheus and promtool, on stdout: that on the PATH, else Debian's, unpacked once into a folder, which needs Debian's
# packages, and root only where their list is older than they are. On stderr their version; one that is too old for the rules is refused.
#   prometheus.sh FOLDER [PROGRAM...]   PROGRAM: what is needed (promtool)
set -euo pipefail
# what Debian 12 has, with which the rules are tested, and the first that knows keep_firing_for
oldest=2.42.0
to=$1
shift
needed=("${@:-promtool}")

# not installed: the package would start a server
unpack() {
  if ! command -v apt-get >/dev/null; then
    echo "no prometheus and promtool on the PATH, and no apt-get to fetch Debian's: install Prometheus" >&2
    exit 1
  fi
  mkdir -p "$to"
  from=$(mktemp -d)
  trap 'rm -rf "$from"' EXIT
  fetch() { (cd "$from" && apt-get download -qq -o APT::Sandbox::User=root prometheus); }
  # a list that is missing or old names a file that is not there
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
echo "promtool: ${version:-of no known version}, $bin" >&2
if [[ $(printf '%s\n' "$oldest" "${version:-0}" | sort -V | head -n 1) != "$oldest" ]]; then
  echo "the rules need $oldest or newer: another Prometheus on the PATH, or none and a newer Debian" >&2
  exit 1
fi
echo "$bin"
