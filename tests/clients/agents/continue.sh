#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Continue's cn without a terminal: a task, and a second process that resumes the conversation.
set -euo pipefail
mkdir -p work
cat >"$HOME/config.yaml" <<YAML
name: tokentap
version: 0.0.1
schema: v1
models:
  - name: scripted
    provider: openai
    model: scripted
    apiBase: $CLIENT_BASE_URL
    apiKey: none
    roles: [chat]
    capabilities: [tool_use]
YAML
export CONTINUE_TELEMETRY_ENABLED=0
cn() { "$CLIENT_TOOLS/npm/node_modules/.bin/cn" --config "$HOME/config.yaml" --auto "$@" </dev/null | tee "$HOME/answer"; }
cd work
cn -p "Write a note."
grep -q 'The note is in place.' "$HOME/answer"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
cn --resume -p "Read it again."
grep -q 'It still rains.' "$HOME/answer"
