#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# qwen-code without a terminal, with the API CLIENT_API: a task, and a second one, in the same process or (CLIENT_CONTINUES=true) in another.
set -euo pipefail
# qwen-code ignores NO_PROXY and sends requests for 127.0.0.1 to a proxy as well
unset HTTP_PROXY HTTPS_PROXY http_proxy https_proxy
mkdir -p work .qwen
cat >.qwen/settings.json <<JSON
{
  "privacy": {"usageStatisticsEnabled": false},
  "general": {"enableAutoUpdate": false},
  "memory": {"enableManagedAutoMemory": false, "enableManagedAutoDream": false}
}
JSON
if [[ $CLIENT_API == messages ]]; then
  export ANTHROPIC_BASE_URL=${CLIENT_BASE_URL%/v1} ANTHROPIC_API_KEY=none ANTHROPIC_MODEL=scripted
  options=(--auth-type anthropic --model scripted)
else
  options=(--auth-type openai --openai-base-url "$CLIENT_BASE_URL" --openai-api-key none --model scripted)
fi
qwen() { "$CLIENT_TOOLS/npm/node_modules/.bin/qwen" "${options[@]}" --yolo "$@"; }
cd work
if [[ ${CLIENT_CONTINUES:-} ]]; then
  qwen "Write a note." </dev/null >"$HOME/answers"
  qwen --continue "Read it again." </dev/null >>"$HOME/answers"
else
  coproc QWEN { qwen --input-format stream-json --output-format stream-json; }
  # the second task is sent after the result of the first: qwen-code does not process its queue in order
  for task in "Write a note." "Read it again."; do
    printf '{"type": "user", "message": {"role": "user", "content": "%s"}}\n' "$task" >&"${QWEN[1]}"
    while IFS= read -r line <&"${QWEN[0]}"; do
      printf '%s\n' "$line" >>"$HOME/answers"
      if [[ $line == '{"type":"result"'* ]]; then break; fi
    done
  done
  pid=$QWEN_PID
  exec {QWEN[1]}>&-
  wait "$pid"
fi
cat "$HOME/answers"
grep -q 'The note is in place.' "$HOME/answers"
grep -q 'It still rains.' "$HOME/answers"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
