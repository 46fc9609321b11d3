#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Make the virtual environment that read.py runs in.
#   setup.sh [FOLDER]     default: $XDG_CACHE_HOME/tokentap-readers
# PYTHON names the interpreter (3.11 or 3.12; verl supports no newer one).
# A part that cannot be installed is noted in FOLDER/skip/PART; read.py then reports
# the readers that need it as skipped, with that reason. Only a missing `base` fails.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:-${XDG_CACHE_HOME:-$HOME/.cache}/tokentap-readers}
python=${PYTHON:-python3.11}
stamp=$(cat "$here"/{requirements.txt,sources.txt,nocuda.py,setup.sh} | cksum)

if [ -f "$venv/complete" ] && [ "$(cat "$venv/complete")" = "$stamp" ]; then
  echo "readers: $venv is up to date"
  exit 0
fi
start=$SECONDS
# Remove only what this script or venv made.
if [ -e "$venv" ] && [ ! -f "$venv/pyvenv.cfg" ] && [ -n "$(ls -A "$venv")" ]; then
  echo "readers: $venv exists and is not a virtual environment" >&2
  exit 1
fi
rm -rf "$venv"
"$python" -m venv "$venv"
mkdir -p "$venv/skip"
pip=("$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --only-binary :all: --no-cache-dir)

note() { # PART LOG: keep the last line with text
  grep -v '^ *$' "$2" | tail -1 >"$venv/skip/$1"
  echo "readers: skip $1: $(cat "$venv/skip/$1")"
}

while read -r part <&3; do
  list=$venv/requirements-$part.txt log=$venv/log-$part.txt
  awk -v part="$part" '/^#= /{on=($2==part);next} on' "$here/requirements.txt" >"$list"
  if ! "${pip[@]}" -r "$list" >"$log" 2>&1; then
    note "$part" "$log"
  elif [ "$part" = torch ]; then
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    if ! { "$venv/bin/python" "$here/nocuda.py" "$site" && "$venv/bin/python" -c 'import torch'; } >"$log" 2>&1; then
      note "$part" "$log"
    fi
  fi
done 3< <(sed -n 's/^#= //p' "$here/requirements.txt")
# Projects without a package: some files of a pinned commit.
while read -r name url commit paths <&3; do
  folder=$venv/source/$name log=$venv/log-$name.txt
  mkdir -p "$folder"
  # shellcheck disable=SC2086 # paths are a list
  if ! { git -C "$folder" init --quiet && git -C "$folder" fetch --quiet --depth 1 "$url" "$commit" &&
         git -C "$folder" checkout --quiet FETCH_HEAD -- $paths; } >"$log" 2>&1; then
    note "$name" "$log"
  fi
done 3< <(grep -v '^#' "$here/sources.txt")
if [ -f "$venv/skip/base" ]; then exit 1; fi
# After skipped parts, the next run tries again.
if [ -z "$(ls -A "$venv/skip")" ]; then echo "$stamp" >"$venv/complete"; fi
echo "readers: $venv: $(du -sm "$venv" | cut -f1) MiB, $((SECONDS - start)) s"
