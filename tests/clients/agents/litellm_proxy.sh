#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Claude Code, whose Messages requests LiteLLM's proxy sends on as Responses requests: the tasks of claude_code.sh.
set -euo pipefail
port=$("$CLIENT_TOOLS/frameworks/bin/python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])')
cat >"$HOME/proxy.yaml" <<YAML
model_list:
  - model_name: scripted
    litellm_params:
      model: openai/scripted
      api_base: $CLIENT_BASE_URL
      api_key: none
    model_info:
      supports_reasoning: true
YAML
export LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY=true
"$CLIENT_TOOLS/frameworks/bin/litellm" --config "$HOME/proxy.yaml" --host 127.0.0.1 --port "$port" --telemetry False &
curl --silent --fail --retry 100 --retry-connrefused --retry-delay 1 --retry-max-time 100 "http://127.0.0.1:$port/health/liveliness"
CLIENT_BASE_URL=http://127.0.0.1:$port/v1 exec bash "$(dirname "$0")/claude_code.sh"
