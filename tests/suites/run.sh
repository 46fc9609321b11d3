#!/usr/bin/env bash
# run.sh [PYTEST ARGUMENTS]   runs conformance tests that other projects wrote, against tokentap with the demo engine.
#   TOKENTAP   the binary (target/release/tokentap, else target/debug/tokentap)
#   PYTHON     the interpreter (python3), 3.11 or newer
# llama.cpp's tests of both dialects are in the source package of llama-cpp-python. It is downloaded once into target/suites. Tests that
# do not apply are listed in `skipped` with the reason.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
tokentap=${TOKENTAP:-}
for build in release debug; do
  if [[ ! $tokentap && -x $root/target/$build/tokentap ]]; then tokentap=$root/target/$build/tokentap; fi
done
if [[ ! -x $tokentap ]]; then echo "no tokentap: run cargo build, or set TOKENTAP" >&2; exit 2; fi
python=${PYTHON:-python3} home=$root/target/suites version=0.3.36
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

cd "$home/llama.cpp"
deselect=()
for name in "${skipped[@]}"; do deselect+=("not $name"); done
printf -v expression '%s and ' "${deselect[@]}"
TOKENTAP_URL=http://127.0.0.1:$data "$home/venv/bin/python" -m pytest -q -p no:cacheprovider --tb=short -k "${expression% and }" . "$@"
echo "skipped, with the reasons in tests/suites/run.sh: ${skipped[*]}"
