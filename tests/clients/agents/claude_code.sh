#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Claude Code without a terminal: the tasks of CLIENT_TASKS, a line TASK:ANSWER for each, each but the first in a new process that continues the
# conversation. The executable is part of the package claude-agent-sdk.
set -euo pipefail
export ANTHROPIC_BASE_URL=${CLIENT_BASE_URL%/v1}
export ANTHROPIC_AUTH_TOKEN=none
export ANTHROPIC_MODEL=scripted ANTHROPIC_SMALL_FAST_MODEL=scripted
export CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC=1
export CLAUDE_CODE_GATEWAY_HINT_HEADERS=1
# bypassPermissions is refused to root outside a sandbox
export IS_SANDBOX=1
claude=$(echo "$CLIENT_TOOLS"/claude/lib/python3*/site-packages/claude_agent_sdk/_bundled/claude)
mkdir -p work
cd work
continue=()
while IFS=':' read -r task answer; do
  "$claude" -p "$task" "${continue[@]}" --permission-mode bypassPermissions --output-format json --max-turns 12 </dev/null | tee "$HOME/answer"
  grep -qF "\"result\":\"$answer\"" "$HOME/answer"
  continue=(--continue)
done <<<"$CLIENT_TASKS"
if [[ ${CLIENT_WRITES:-} ]]; then [[ $(cat note.txt) == "Bergen: 🌧" ]]; fi
