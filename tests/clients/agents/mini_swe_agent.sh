#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# mini-swe-agent, which calls its model through litellm with the API CLIENT_API, does a task.
set -euo pipefail
export MSWEA_CONFIGURED=true MSWEA_COST_TRACKING=ignore_errors LITELLM_LOCAL_MODEL_COST_MAP=True
options=(-c mini.yaml -c model.model_kwargs.api_base="$CLIENT_BASE_URL" -c model.model_kwargs.api_key=none)
if [[ $CLIENT_API == responses ]]; then options+=(-c model.model_class=litellm_response); fi
mkdir -p work
cd work
"$CLIENT_TOOLS/litellm/bin/mini" --model openai/scripted "${options[@]}" --task "Write a note." --yolo --exit-immediately --output "$HOME/trajectory.json"
[[ $(cat note.txt) == "Bergen: 🌧" ]]
