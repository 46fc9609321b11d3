#!/usr/bin/env bash
# mini-swe-agent, which calls its model through litellm, writes a note and reads it.
set -euo pipefail
export MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True
"$CLIENT_TOOLS/litellm/bin/mini" --model openai/scripted --task "Write a note." --yolo --exit-immediately --output "$HOME/trajectory.json" \
  -c mini.yaml -c model.model_kwargs.api_base="$CLIENT_BASE_URL" -c model.model_kwargs.api_key=none
[[ $(cat note.txt) == "Tromsø: 🌧" ]]
