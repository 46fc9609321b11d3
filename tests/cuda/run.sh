#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [asan|tsan]   compares the kernels of cuda/, run on the host, with float64. Without a sanitizer they run on fibres and take
# seconds, with a sanitizer on threads and take minutes. CUDA names another folder with the .cu files, CXX another compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cuda=${CUDA:-$here/../../cuda}
build=$(mktemp -d)
trap 'rm -r "$build"' EXIT

# _FORTIFY_SOURCE reports a jump between the stacks of fibres as an error.
flags=(-std=c++20 -U_FORTIFY_SOURCE -Wall -Wextra -Wno-unknown-pragmas -I"$here" -I"$cuda")
case ${1:-} in
  "") flags+=(-O2) ;;
  asan) flags+=(-O1 -g -DSHIM_THREADS -pthread -fsanitize=address,undefined -fno-sanitize-recover=all) ;;
  tsan) flags+=(-O1 -g -DSHIM_THREADS -pthread -fsanitize=thread) ;;
  *) echo "run.sh [asan|tsan]" >&2; exit 64 ;;
esac
"${CXX:-g++}" "${flags[@]}" -x c++ "$here/kernels.cpp" -o "$build/kernels"
"$build/kernels"
