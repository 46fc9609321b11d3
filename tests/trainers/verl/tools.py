"""The tools of the demo model's lighthouse."""

from __future__ import annotations

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
