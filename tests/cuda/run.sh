#!/usr/bin/env bash
# The kernels of cuda/ on the host against float64: run.sh [asan|tsan]. Plain: fibres, seconds. With a sanitizer:
# threads, minutes. CUDA names another folder with the .cu files, CXX another compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cuda=${CUDA:-$here/../../cuda}
build=$(mktemp -d)
trap 'rm -r "$build"' EXIT

# Fortify takes a jump between the stacks of fibres for a mistake.
flags=(-std=c++20 -U_FORTIFY_SOURCE -Wall -Wextra -Wno-unknown-pragmas -I"$here" -I"$cuda")
case ${1:-} in
  "") flags+=(-O2) ;;
  asan) flags+=(-O1 -g -DSHIM_THREADS -pthread -fsanitize=address,undefined -fno-sanitize-recover=all) ;;
  tsan) flags+=(-O1 -g -DSHIM_THREADS -pthread -fsanitize=thread) ;;
  *) echo "run.sh [asan|tsan]" >&2; exit 64 ;;
esac
"${CXX:-g++}" "${flags[@]}" -x c++ "$here/kernels.cpp" -o "$build/kernels"
"$build/kernels"
