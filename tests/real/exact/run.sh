#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exact/run.sh [MODE...]   tests the plugin in real SGLang 0.5.23 servers on the CPU: compares each token's entropy with the weights, in
# SGLang itself and through tokentap, and the intervals of a server without the plugin. All modes take about half an hour.
#   TOKENTAP          the binary (target/release/tokentap)
#   REAL_SGLANG_HOME  where the servers are installed (~/.cache/real-sglang)
set -uo pipefail
modes=("$@")
((${#modes[@]})) || modes=(numerics overlap incremental no-overlap retraction retraction-no-overlap grammar intervals cost)
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../../common.sh"
export REAL_SGLANG_HOME=${REAL_SGLANG_HOME:-$HOME/.cache/real-sglang}
tokentap=${TOKENTAP:-$here/../../../target/release/tokentap}
model=$REAL_SGLANG_HOME/model-0
python=$REAL_SGLANG_HOME/venv-0.5.23/bin/python
work=$(mktemp -d)
table='' failed=0 direct='' via=''

source "$here/../servers.sh"
trap 'stop; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

start() { # start PLUGIN [server arguments]: an engine, with the plugin or without, and tokentap in front of it
  local plugin=$1 engine data control; shift
  read -r engine data control < <(free_ports)
  direct=http://127.0.0.1:$engine via=http://127.0.0.1:$data
  local path=''; ((plugin)) && path=$work/site
  PYTHONPATH=$path "$here/../serve.sh" 0.5.23 "$engine" "$@"; local served=$?
  server=$(cat "$REAL_SGLANG_HOME/$engine.pid")
  ((served)) && return "$served"
  grep -h 'token entropy' "$REAL_SGLANG_HOME/$engine.log"
  front "$direct" "$data" "$control" || return
  "$tokentap" check --upstream "$direct"
}

tokens() { # tokens HOW [options] SUITE...
  local how=$1 base=$direct; shift
  [[ $how == plugin ]] || base=$via
  "$python" "$here/tokens.py" --base "$base" --model "$model" --how "$how" "$@"
}

one() {
  local bad=0 everything=(basic penalties streams batches neighbours aborts)
  case $1 in
    numerics) PYTHONPATH=$work/site "$python" "$here/numerics.py" || bad=1
      PYTHONPATH=$work/site "$python" "$here/numerics.py" --compile || bad=1 ;;
    overlap) start 1 || return
      tokens plugin "${everything[@]}" || bad=1; tokens tokentap "${everything[@]}" || bad=1 ;;
    incremental) start 1 --incremental-streaming-output --chunked-prefill-size 32 || return
      tokens plugin chunks streams neighbours aborts || bad=1; tokens tokentap chunks streams neighbours aborts || bad=1 ;;
    no-overlap) start 1 --disable-overlap-schedule --chunked-prefill-size 32 || return
      tokens plugin --no-lag chunks "${everything[@]}" || bad=1; tokens tokentap --no-lag penalties chunks streams || bad=1 ;;
    retraction) start 1 --max-total-tokens 400 || return
      tokens plugin retraction || bad=1; tokens tokentap retraction || bad=1 ;;
    retraction-no-overlap) start 1 --max-total-tokens 400 --disable-overlap-schedule || return
      tokens plugin --no-lag retraction || bad=1 ;;
    grammar) start 1 --grammar-backend xgrammar --enable-custom-logit-processor || return
      "$python" "$here/masks.py" --base "$direct" || bad=1; "$python" "$here/masks.py" --base "$via" --through || bad=1 ;;
    intervals) start 0 || return
      tokens intervals basic penalties streams batches || bad=1 ;;
    cost) start 1 || return
      "$python" "$here/cost.py" --base "$direct" || bad=1
      stop; start 0 || return
      "$python" "$here/cost.py" --base "$direct" --without || bad=1 ;;
    *) echo "no mode $1"; return 1 ;;
  esac
  ((bad)) && [[ -f $work/tokentap.log ]] && tail -20 "$work/tokentap.log"
  return $bad
}

"$here/../setup.sh" 0.5.23 || exit
# built from a copy, because a build writes files; installed separately, so that other runs do not have the plugin
cp -r "$here/../../../python/tokentap-sglang" "$work/source"
uv pip install -q --python "$python" --no-deps --target "$work/site" "$work/source" || exit
for mode in "${modes[@]}"; do
  echo "== $mode"
  one "$mode" >"$work/$mode.out" 2>&1; code=$?
  cat "$work/$mode.out"
  stop
  if ((code)); then
    failed=1
  else
    # numerics starts no server
    record_passed SGLang "$(package_version "$python" sglang)" "bash tests/real/exact/run.sh $mode" || failed=1
  fi
  table+=$(printf '%-22s %5d ok %5d FAIL  %s' "$mode" "$(grep -c '^ok ' "$work/$mode.out")" \
    "$(grep -c '^FAIL ' "$work/$mode.out")" "$( ((code)) && echo failed || echo passed)")$'\n'
done
printf '\n%s' "$table"
exit $failed
