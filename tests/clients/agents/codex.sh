#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Codex without a terminal: the tasks of CLIENT_TASKS, a line TASK:ANSWER for each, or TASK:ANSWER:PICTURE with a file that is attached,
# each but the first in a new process that resumes the conversation.
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
resume=()
while IFS=':' read -r task answer picture; do
  "$CLIENT_TOOLS/npm/node_modules/.bin/codex" exec "${resume[@]}" ${picture:+"--image=$picture"} --json --skip-git-repo-check \
    --dangerously-bypass-approvals-and-sandbox "$task" </dev/null | tee "$HOME/answers"
  grep -qF "$answer" "$HOME/answers"
  resume=(resume --last)
done <<<"$CLIENT_TASKS"
if [[ ${CLIENT_WRITES:-} ]]; then [[ $(cat note.txt) == "Bergen: 🌧" ]]; fi
