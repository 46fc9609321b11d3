#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# vf-eval of verifiers: its interception server forwards the calls of a rollout of the taskset note_v1.
set -euo pipefail
python=$CLIENT_TOOLS/verifiers/bin
# The program of the harness is a script for uv, which would install its packages from PyPI. They are in the environment already.
mkdir -p "$HOME/.local/bin"
cat >"$HOME/.local/bin/uv" <<SH
#!/bin/sh
case "\$*" in
*--help) echo --script ;;
"python find"*) echo "$python/python" ;;
esac
SH
chmod +x "$HOME/.local/bin/uv"
export PYTHONPATH=$(dirname "$0")
options=(--env.agent.runtime.type subprocess --model scripted --client.base-url "$CLIENT_BASE_URL" --client.api-key-var NONE)
"$python/vf-eval" note-v1 "${options[@]}" -n 1 --no-push --no-rich
grep -q 'The note is in place.' outputs/*/traces.jsonl
