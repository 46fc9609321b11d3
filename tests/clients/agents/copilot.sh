#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Copilot CLI without a terminal, with the API CLIENT_API: a task, and a second process that continues the conversation.
set -euo pipefail
export COPILOT_PROVIDER_BASE_URL=$CLIENT_BASE_URL COPILOT_PROVIDER_API_KEY=none COPILOT_MODEL=scripted COPILOT_OFFLINE=true
if [[ $CLIENT_API == responses ]]; then export COPILOT_PROVIDER_WIRE_API=responses; fi
copilot() { "$CLIENT_TOOLS/npm/node_modules/.bin/copilot" --allow-all-tools --no-color "$@" </dev/null | tee "$HOME/answer"; }
mkdir -p work
cd work
copilot -p "Write a note."
grep -q 'The note is in place.' "$HOME/answer"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
copilot --continue -p "Read it again."
grep -q 'It still rains.' "$HOME/answer"
