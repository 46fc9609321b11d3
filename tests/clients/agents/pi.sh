#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# pi without a terminal: a task, and a second process that continues the conversation.
set -euo pipefail
mkdir -p work "$HOME/.pi/agent"
cat >"$HOME/.pi/agent/models.json" <<JSON
{
  "providers": {
    "tokentap": {
      "baseUrl": "$CLIENT_BASE_URL",
      "api": "openai-completions",
      "apiKey": "none",
      "models": [{"id": "scripted", "reasoning": false, "contextWindow": 200000, "maxTokens": 8000}]
    }
  }
}
JSON
export PI_OFFLINE=1 PI_SKIP_VERSION_CHECK=1 PI_TELEMETRY=0
pi() { "$CLIENT_TOOLS/npm/node_modules/.bin/pi" --provider tokentap --model scripted "$@" </dev/null | tee "$HOME/answer"; }
cd work
pi -p "Write a note."
grep -q 'The note is in place.' "$HOME/answer"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
pi --continue -p "Read it again."
grep -q 'It still rains.' "$HOME/answer"
