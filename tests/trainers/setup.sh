#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# setup.sh NAME   makes the virtual environment of a trainer, $XDG_CACHE_HOME/tokentap-trainers/NAME, and prints its folder.
# requirements-NAME.txt pins every package; --no-deps installs no others.
# PYTHON names the interpreter (python3.11). If torch is listed, it is made importable without CUDA (../readers/nocuda.py).
set -euo pipefail
name=${1:?NAME}
here=$(cd "$(dirname "$0")" && pwd)
list=$here/requirements-$name.txt nocuda=$here/../readers/nocuda.py
venv=${XDG_CACHE_HOME:-$HOME/.cache}/tokentap-trainers/$name
python=${PYTHON:-python3.11}
stamp=$(cat "$list" "$nocuda" "$here/setup.sh" | cksum)

if [[ "$(cat "$venv/complete" 2>/dev/null)" != "$stamp" ]]; then
  # remove only what this script or venv made
  if [[ -e $venv && ! -f $venv/pyvenv.cfg && -n $(ls -A "$venv") ]]; then
    echo "$venv is in use and is no virtual environment" >&2
    exit 1
  fi
  rm -rf "$venv"
  start=$SECONDS
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --no-cache-dir --only-binary :all: -r "$list" >&2
  if grep -q '^torch==' "$list"; then
    site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$venv/bin/python" "$nocuda" "$site" >&2
    "$venv/bin/python" -c 'import torch'
  fi
  echo "$stamp" >"$venv/complete"
  echo "trainers: $venv: $(du -sm "$venv" | cut -f1) MiB, $((SECONDS - start)) s" >&2
fi
echo "$venv"
