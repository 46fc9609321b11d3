#!/usr/bin/env bash
# opencode without a terminal: a task with two tools, and a second process that continues the conversation.
set -euo pipefail
export OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1 OPENCODE_DISABLE_DEFAULT_PLUGINS=1
mkdir -p work .config/opencode
cat >.config/opencode/opencode.json <<JSON
{
  "autoupdate": false,
  "share": "disabled",
  "agent": {"title": {"disable": ${CLIENT_NO_TITLE:-false}}},
  "model": "tokentap/scripted",
  "small_model": "tokentap/scripted",
  "provider": {
    "tokentap": {
      "npm": "@ai-sdk/openai-compatible",
      "options": {"baseURL": "$CLIENT_BASE_URL", "apiKey": "none"},
      "models": {"scripted": {"limit": {"context": 200000, "output": 8000}}}
    }
  }
}
JSON
cd work
opencode() { "$CLIENT_TOOLS/npm/node_modules/opencode-$(node -p "process.platform + '-' + process.arch")/bin/opencode" run --auto "$@"; }
opencode "Write a note." | tee "$HOME/first"
grep -q 'The note is in place.' "$HOME/first"
[[ $(cat note.txt) == "Tromsø: 🌧" ]]
opencode --continue "Read it again." | tee "$HOME/second"
grep -q 'It still rains.' "$HOME/second"
