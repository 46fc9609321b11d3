#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [SRC [MODE...]]   tokentap in front of a live sglang-jax on the CPU; SRC is a checkout of sgl-project/sglang-jax.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3.12), as sglang-jax needs it: 3.12 or 3.13
# Builds nothing, and writes nothing to SRC. What sglang-jax imports is installed once into target/jax, without sglang-jax itself; that
# needs PyPI and npm. Exit status 1 if a mode failed, 0 without SRC.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
source=${1:-}
shift || true
if [[ ! $source ]]; then
  echo "SKIPPED: nothing was checked, because no checkout of sglang-jax was given; run: make jax SRC=path/to/sglang-jax" >&2
  exit 0
fi
if [[ ! -f $source/python/sgl_jax/launch_server.py ]]; then echo "$source is no checkout of sglang-jax" >&2; exit 2; fi
source=$(realpath "$source")
record_default "$*"
modes=("$@")
((${#modes[@]})) || modes=(overlap no-overlap skip-tokenizer)
tokentap=$(find_tokentap "$root")
python=${PYTHON:-python3.12}
if ! "$python" -c 'import sys; sys.exit(not (3, 12) <= sys.version_info < (3, 14))'; then
  echo "$python is no Python 3.12 or 3.13: set PYTHON" >&2
  exit 2
fi
tools=$root/target/jax
venv=$tools/venv
export PYTHONDONTWRITEBYTECODE=1

install() {
  local list=$here/requirements.txt stamp
  stamp="$("$python" -V) $(cksum <"$list")"
  if [[ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
    echo "jax: installing $venv" >&2
    rm -rf "$venv"
    "$python" -m venv "$venv" &&
      "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-cache-dir --no-deps --only-binary :all: -r "$list" || return
    echo "$stamp" >"$venv/stamp"
  fi
  bash "$here/../real/tokenizer.sh" "$tools" || return
  # the kernels of sglang-jax support no other head_dim
  [[ -f $tools/model/config.json ]] ||
    "$venv/bin/python" "$here/../real/make_model.py" --out "$tools/model" --tokenizer "$tools/tokenizer" --seed 0 --head-dim 128
}

work=$(mktemp -d)
source "$here/../real/servers.sh"
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

serve() { # serve MODE PORT: sglang-jax, answering
  local options=()
  [[ $1 == no-overlap ]] && options+=(--disable-overlap-schedule)
  [[ $1 == skip-tokenizer ]] && options+=(--skip-tokenizer-init)
  # One request at a time: with native attention on the CPU, concurrent requests sample other tokens than each would alone.
  # The modes share a compilation cache.
  JAX_PLATFORMS=cpu JAX_COMPILATION_CACHE_DIR=$tools/cache HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 PYTHONPATH=$source/python \
    setsid "$venv/bin/python" -m sgl_jax.launch_server --model-path "$tools/model" --served-model-name tiny \
    --host 127.0.0.1 --port "$2" --device cpu --attention-backend native --dtype float32 --mem-fraction-static 0.2 \
    --max-total-tokens 8192 --max-running-requests 1 --disable-precompile --skip-server-warmup "${options[@]}" >"$work/engine.log" 2>&1 &
  server=$!
  disown "$server"
  for _ in $(seq 300); do
    sleep 1
    if curl -sf -m 2 -o /dev/null "http://127.0.0.1:$2/get_model_info"; then return; fi
    kill -0 "$server" 2>/dev/null || break
  done
  echo "sglang-jax does not answer"
  return 1
}

one() { # one MODE: returns 0 if all checks pass
  local port
  read -r port _ < <(free_ports)
  serve "$1" "$port" &&
    PYTHONPATH=$here/../router:$here/../real "$venv/bin/python" "$here/check.py" --engine "http://127.0.0.1:$port" --mode "$1" \
      --model "$tools/model" --tokentap "$tokentap" --work "$work"
}

mkdir -p "$tools"
install || exit 2
failed=0 table=''
for mode in "${modes[@]}"; do
  echo "== $mode"
  # not in a subshell: stop needs the process
  one "$mode" >"$work/$mode.out" 2>&1; code=$?
  cat "$work/$mode.out"
  if ((code)); then failed=1; tail -20 "$work/engine.log"; fi
  stop
  table+=$(printf '%-16s %4d ok %4d FAIL  %s' "$mode" "$(grep -c '^ok ' "$work/$mode.out")" \
    "$(grep -c '^FAIL ' "$work/$mode.out")" "$( ((code)) && echo failed || echo passed)")$'\n'
done
printf '\n%s' "$table"
if ((!failed)); then
  found=$(PYTHONPATH=$source/python "$venv/bin/python" -c 'import sgl_jax.version; print(sgl_jax.version.__version__)')
  record_passed sglang-jax "$found" "bash tests/jax/run.sh SRC" || failed=1
fi
exit $failed
