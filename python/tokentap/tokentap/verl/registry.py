# SPDX-License-Identifier: Apache-2.0
"""Registers the agent loops as `tokentap_agent` and `tokentap_tool_agent`, configured by the environment.

`VERL_USE_EXTERNAL_MODULES=tokentap.verl.registry` makes verl import this module in each of its processes; `manager`
imports it too. It is separate from `loops`: verl reads an `agent_loop_config_path` first and imports its classes later,
and an entry of that file must not be replaced by one of the same name without its options.
"""

from __future__ import annotations

from verl.experimental.agent_loop.agent_loop import register

from ._loops import SingleTurnAgentLoop, ToolAgentLoop

register("tokentap_agent")(SingleTurnAgentLoop)
register("tokentap_tool_agent")(ToolAgentLoop)
