#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# opencode without a terminal, with the provider of the API CLIENT_API: a task, and a second process that continues the conversation.
set -euo pipefail
export OPENCODE_DISABLE_MODELS_FETCH=1 OPENCODE_DISABLE_AUTOUPDATE=1 OPENCODE_DISABLE_LSP_DOWNLOAD=1 OPENCODE_DISABLE_DEFAULT_PLUGINS=1
# opencode installs a package into the folder of its configuration
export npm_config_offline=true
case $CLIENT_API in
  chat) package=@ai-sdk/openai-compatible options='{}' ;;
  messages) package=@ai-sdk/anthropic options='{}' ;;
  responses) package=@ai-sdk/openai options='{"store": false, "include": ["reasoning.encrypted_content"]}' ;;
esac
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
      "npm": "$package",
      "options": {"baseURL": "$CLIENT_BASE_URL", "apiKey": "none"},
      "models": {"scripted": {"limit": {"context": 200000, "output": 8000}, "options": $options}}
    }
  }
}
JSON
cd work
opencode() { "$CLIENT_TOOLS/npm/node_modules/opencode-$(node -p "process.platform + '-' + process.arch")/bin/opencode" run --auto "$@"; }
if [[ ${CLIENT_TASK:-} ]]; then
  opencode "$CLIENT_TASK" | tee "$HOME/first"
  grep -qF "$CLIENT_ANSWER" "$HOME/first"
  exit
fi
opencode "Write a note." | tee "$HOME/first"
grep -q 'The note is in place.' "$HOME/first"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
opencode --continue "Read it again." | tee "$HOME/second"
grep -q 'It still rains.' "$HOME/second"
