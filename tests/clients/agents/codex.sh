#!/usr/bin/env bash
# Codex without a terminal: a task, and a second process that resumes the conversation, or (CLIENT_TASK) another task.
set -euo pipefail
export CODEX_HOME=$HOME/.codex
mkdir -p work "$CODEX_HOME"
cat >"$CODEX_HOME/config.toml" <<TOML
model = "scripted"
model_provider = "tokentap"
web_search = "disabled"
model_auto_compact_token_limit = ${CLIENT_COMPACTS_AT:-200000}

[analytics]
enabled = false

[features]
plugins = false

[model_providers.tokentap]
name = "tokentap"
base_url = "$CLIENT_BASE_URL"
wire_api = "responses"
requires_openai_auth = false
TOML
cd work
codex() { "$CLIENT_TOOLS/npm/node_modules/.bin/codex" exec "$@" --json --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox; }
if [[ ${CLIENT_TASK:-} ]]; then
  codex "$CLIENT_TASK" </dev/null | tee "$HOME/answers"
  grep -qF "$CLIENT_ANSWER" "$HOME/answers"
  exit
fi
codex "Write a note." </dev/null | tee "$HOME/answers"
grep -q 'The note is in place.' "$HOME/answers"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
codex resume --last "Read it again." </dev/null | tee "$HOME/answers"
grep -q 'It still rains.' "$HOME/answers"
