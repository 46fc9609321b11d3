# SPDX-License-Identifier: Apache-2.0
"""The tools of the demo model's lighthouse, and a parser for a model that cannot call them.

verl's workers run this file, because `function_tool_path` names it.
"""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.tool_parser import FunctionCall, ToolParser
from verl.tools.function_tool import function_tool


@function_tool
def weather(place: str) -> str:
    """Say the weather.

    Args:
        place: Where it is asked.
    """
    return f"Wind west, force 4. Visibility good at {place}."


@function_tool
def tides(day: str) -> str:
    """Say the tides.

    Args:
        day: On which day.
    """
    return f"High water 06:12, low water 12:25 on {day}."


@ToolParser.register("always")
class Always(ToolParser):  # type: ignore[misc]
    """Random weights call no tool and end no turn; with `multi_turn.format: always` every reply is a call, and about one
    in twenty tokens ends it."""

    @property
    def stop_token_ids(self) -> list[int]:
        """Every twentieth id of Qwen3's vocabulary."""
        return list(range(0, 151_643, 20))

    async def extract_tool_calls(self, responses_ids: list[int], tools: Any = None) -> tuple[str, list[FunctionCall]]:
        """The text, and one call."""
        return self.tokenizer.decode(responses_ids), [FunctionCall(name="tides", arguments='{"day": "Monday"}')]
