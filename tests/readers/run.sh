#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Export a scripted agent's sessions from `tokentap demo` and read them with the trainers' own libraries.
#   run.sh [FOLDER]     keeps the exports in FOLDER if one is given
#   TOKENTAP            the binary (target/release/tokentap, else target/debug/tokentap)
#   READERS             the environment that setup.sh makes ($XDG_CACHE_HOME/tokentap-readers)
# Builds nothing. Exit status 1 if a reader fails; one that cannot be installed is only reported.
set -uo pipefail
here=$(cd "$(dirname "$0")" && pwd)
source "$here/../common.sh"
readers=${READERS:-${XDG_CACHE_HOME:-$HOME/.cache}/tokentap-readers}
tokentap=${TOKENTAP:-}
for build in release debug; do
  if [[ ! $tokentap && -x $here/../../target/$build/tokentap ]]; then tokentap=$here/../../target/$build/tokentap; fi
done
if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; exit 2; fi
work=$(mktemp -d)
out=${1:-$work/exports}
demo='' failed=0
start=7 end=258 # ids of the demo's vocabulary that are used as <think> and </think>
trap 'if [[ $demo ]]; then kill "$demo" 2>/dev/null; wait "$demo"; fi; rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

"$here/setup.sh" "$readers" || exit
python=$readers/bin/python

step() { # step NAME COMMAND...: its lines with NAME before them, for the table
  local name=$1 code; shift
  "$@" >"$work/lines" 2>"$work/errors"; code=$?
  tee -a "$work/all" <"$work/lines"
  if ((code)); then failed=1; tail -20 "$work/errors"; fi
  # a command without such lines counts as one check
  table+=$(awk -v name="$name" -v code=$code '$1=="ok"{ok++} $1=="skip"{skip++} $1=="FAIL"{bad++}
    END{if (!(ok + skip + bad)) {ok = !code; bad = !!code}; printf "%-20s %4d ok %4d skip %4d FAIL", name, ok, skip, bad}' "$work/lines")
  table+="$( ((code)) && echo '  failed')"$'\n'
}

readers_lines() { # readers_lines COMPONENT: the results of its checks in all batches
  local name=${1,,}
  case $name in strands-sglang) name=strands ;; rllm-model-gateway) name=rllm ;; pyarrow | datasets | polars | duckdb) name="columnar $name:" ;; esac
  grep -E "^(ok|skip|FAIL) $name " "$work/all"
}

table=''
step selftest "$python" "$here/selftest.py"
step egpo_reference "$python" "$here/egpo_reference.py" --check
step steps_reference "$python" "$here/steps_reference.py" --check
step distill_reference "$python" "$here/distill_reference.py" --check

step pictures "$python" "$here/pictures.py" "$tokentap"

"$tokentap" demo --listen 127.0.0.1:0 --control-listen 127.0.0.1:0 --think-tokens "$start,$end" \
  --columns routed_experts --moe-shape 3x2x8 >"$work/demo" 2>&1 &
demo=$!
for _ in $(seq 100); do
  if grep -q '^Metrics:' "$work/demo" || ! kill -0 "$demo" 2>/dev/null; then break; fi
  sleep 0.1
done
data=$(grep -oEm1 'http://[0-9.:]+/generate' "$work/demo")
control=$(grep -oEm1 'http://[0-9.:]+/v1' "$work/demo")
if [[ ! $data || ! $control ]]; then cat "$work/demo"; echo "the demo did not start" >&2; exit 1; fi

step exports "$python" "$here/exports.py" "$out" --data "${data%/generate}" --control "${control%/v1}" \
  --think-start $start --think-end $end
for batch in "$out"/*/; do
  batch=$(basename "$batch")
  echo "== $batch"
  step "read $batch" "$python" "$here/read.py" "$out/$batch"
  if [[ -f $out/$batch/data.jsonl ]]; then step "columnar $batch" "$python" "$here/columnar.py" "$out/$batch"; fi
done
printf '\n%s' "$table"

# the version of each reader without a failed or skipped check; two projects are a pinned commit, and two have no package that can be read alone
if ((!failed)); then
  for reader in verl miles=miles-rl slime=miles-rl AReaL=torch tunix=google-tunix strands-sglang rllm-model-gateway skyrl NeMo-RL prime-rl trl tinker pyarrow datasets polars duckdb; do
    component=${reader%%=*}
    lines=$(readers_lines "$component")
    if [[ ! $lines ]] || grep -q '^skip' <<<"$lines"; then echo "not recorded: $component" >&2; continue; fi
    case $component in
      NeMo-RL | prime-rl) version=$(git -C "$readers/source/${component,,}" rev-parse --short=12 FETCH_HEAD) ;;
      *) version=$(package_version "$python" "${reader#*=}") ;;
    esac
    case $component in
      slime) version="read with miles-rl $version" ;;
      AReaL) version="read with torch $version" ;;
    esac
    record_passed "$component" "$version" "bash tests/readers/run.sh" || failed=1
  done
fi
exit $failed
