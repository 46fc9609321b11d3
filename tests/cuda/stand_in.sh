#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# stand_in.sh OUTDIR   builds the fake CUDA driver as OUTDIR/libcuda.so.1, and a broken one as OUTDIR/broken/libcuda.so.1. Does nothing if
# OUTDIR is newer than the sources. CXX and CC name other compilers.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cuda=$here/../../cuda
out=${1:?stand_in.sh OUTDIR}
mkdir -p "$out/broken"

for source in "$here"/*.h "$here"/stand_in.* "$here/broken.c" "$cuda"/*.cu; do
  if [[ ! $out/broken/libcuda.so -nt $source ]]; then stale=yes; fi
done
if [[ -z ${stale:-} ]]; then exit 0; fi

# Built under another name and then moved, so that a concurrent build never finds an incomplete file.
flags=(-O2 -fPIC -shared -fvisibility=hidden -Wl,-soname,libcuda.so.1)
"${CXX:-g++}" "${flags[@]}" -std=c++20 -U_FORTIFY_SOURCE -pthread -Wall -Wextra -Wno-unknown-pragmas \
  -I"$here" -I"$cuda" "$here/stand_in.cpp" -o "$out/stand_in.$$"
mv "$out/stand_in.$$" "$out/libcuda.so.1"
"${CC:-gcc}" "${flags[@]}" "$here/broken.c" -o "$out/broken/broken.$$"
mv "$out/broken/broken.$$" "$out/broken/libcuda.so.1"
# The name that loaders try first; otherwise a library of the system would be loaded.
ln -sfn libcuda.so.1 "$out/libcuda.so"
ln -sfn libcuda.so.1 "$out/broken/libcuda.so"
