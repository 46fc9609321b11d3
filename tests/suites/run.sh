#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [PYTEST ARGUMENTS]   runs conformance tests that other projects wrote, against tokentap.
#   TOKENTAP        the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON          the interpreter (python3), 3.11 or newer
#   SGLANG          a checkout of SGLang, for its server tests of Messages and Responses
#   OPENRESPONSES   a checkout of Open Responses, for its compliance tests; they also need npm
# llama.cpp's tests of both dialects are in the source package of llama-cpp-python. It is downloaded once into target/suites. They run
# with the demo engine, and the arguments are for them; the others run with the scripted engine of tests/clients. Tests that do not apply or
# fail are listed with the reason: in `skipped` below, and in FAILURES of sglang_modules.py and open_responses.py.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
source "$root/tests/common.sh"
tokentap=$(find_tokentap "$root")
python=${PYTHON:-python3} home=$root/target/suites version=0.3.36 bun=1.4.5
if [[ ${SGLANG:-} ]]; then SGLANG=$(realpath "$SGLANG"); fi
if [[ ${OPENRESPONSES:-} ]]; then OPENRESPONSES=$(realpath "$OPENRESPONSES"); fi
export PYTHONDONTWRITEBYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1

skipped=(
  # the demo engine reads no images
  test_anthropic_tool_result_with_image test_anthropic_vision_base64_with_multimodal_model
  # expects a refusal of images from a model without a projector; tokentap leaves the answer to the engine
  test_anthropic_vision_format_accepted
  # needs a model of 4 GB
  test_anthropic_thinking_with_reasoning_model
  # a route and members that only llama.cpp has
  test_anthropic_thinking_history_in_template test_responses_stream_with_llama_telemetry
  # expects 200 for a request without messages, which is a 400 in Anthropic's API
  test_anthropic_empty_messages
  # a template that keeps the thoughts of earlier turns; the demo's template drops them
  test_anthropic_thinking_history_in_count_tokens
)

stamp="$("$python" -V) $version $(cksum <"$here/requirements.txt")"
if [[ "$(cat "$home/stamp" 2>/dev/null)" != "$stamp" ]]; then
  rm -rf "$home"
  mkdir -p "$home/download"
  "$python" -m venv "$home/venv"
  "$home/venv/bin/python" -m pip install --quiet -r "$here/requirements.txt"
  "$home/venv/bin/python" "$here/fetch.py" "llama_cpp_python-$version.tar.gz" "$home/download"
  mkdir "$home/llama.cpp"
  tar -xzf "$home/download/llama_cpp_python-$version.tar.gz" -C "$home/llama.cpp" --strip-components=7 --wildcards '*/tools/server/tests/unit/test_compat_anthropic.py' '*/tools/server/tests/unit/test_compat_oai_responses.py'
  rm -rf "$home/download"
  echo "$stamp" >"$home/stamp"
fi
cp "$here/utils.py" "$home/llama.cpp/utils.py"

read -r data control < <("$python" -c 'import socket
s = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
print(*[x.getsockname()[1] for x in s])')
# the tests expect a text as the first block, and the demo's model thinks first
"$tokentap" demo --separate-reasoning never --listen "127.0.0.1:$data" --control-listen "127.0.0.1:$control" >"$home/tokentap.log" 2>&1 &
proxy=$!
trap 'kill "$proxy"; wait "$proxy" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
  curl -sf -m 2 -o /dev/null "http://127.0.0.1:$control/readyz" && break
  sleep 0.1
done

failed=0
echo "== llama.cpp"
cd "$home/llama.cpp"
deselect=()
for name in "${skipped[@]}"; do deselect+=("not $name"); done
printf -v expression '%s and ' "${deselect[@]}"
DATA_URL=http://127.0.0.1:$data "$home/venv/bin/python" -m pytest -q -p no:cacheprovider --tb=short -k "${expression% and }" . "$@" || failed=1
echo "skipped, with the reasons in tests/suites/run.sh: ${skipped[*]}"

missing=()
if [[ ${SGLANG:-} ]]; then
  echo "== SGLang"
  tests=()
  while IFS= read -r file; do tests+=("$file"); done < <(
    # files without a launcher test SGLang's classes
    find "$SGLANG/test/registered/openai_server" \( -name 'test_anthropic*.py' -o -name 'test_responses*.py' \) -exec grep -l popen_launch_server {} + | sort)
  if [[ ${#tests[@]} == 0 ]]; then echo "no server tests of Messages or Responses in SGLANG=$SGLANG" >&2; exit 2; fi
  cd "$home"
  PYTHONPATH=$here "$home/venv/bin/python" "$here/scripted.py" "$tokentap" \
    "$home/venv/bin/python" -m pytest -q -rxs -p no:cacheprovider -p sglang_modules --tb=short --rootdir "$SGLANG" -c /dev/null --import-mode importlib "${tests[@]}" || failed=1
else
  missing+=("SGLang's server tests: SGLANG=path of a checkout was not given")
fi

if [[ ${OPENRESPONSES:-} ]]; then
  echo "== Open Responses"
  if [[ ! -f $OPENRESPONSES/bin/compliance-test.ts ]]; then echo "no bin/compliance-test.ts in OPENRESPONSES=$OPENRESPONSES" >&2; exit 2; fi
  zod=$(node -p 'require(process.argv[1]).dependencies.zod' "$OPENRESPONSES/package.json")
  if [[ "$(cat "$home/npm" 2>/dev/null)" != "$bun $zod" ]]; then
    rm -rf "$home/node_modules"
    (cd "$home" && echo '{"private": true}' >package.json && npm install --loglevel error --no-audit --no-fund --no-save --ignore-scripts "bun@$bun" "zod@$zod")
    echo "$bun $zod" >"$home/npm"
  fi
  # a copy, so that the imports find the packages in the parent folder
  rm -rf "$home/openresponses"
  mkdir "$home/openresponses"
  cp -r "$OPENRESPONSES/package.json" "$OPENRESPONSES/bin" "$OPENRESPONSES/src" "$home/openresponses"
  "$home/venv/bin/python" "$here/scripted.py" "$tokentap" \
    "$home/venv/bin/python" "$here/open_responses.py" "$(echo "$home"/node_modules/@oven/bun-*/bin/bun)" "$home/openresponses" || failed=1
else
  missing+=("Open Responses compliance tests: OPENRESPONSES=path of a checkout was not given")
fi

for suite in ${missing[@]+"${missing[@]}"}; do echo "SKIPPED $suite" >&2; done
exit "$failed"
