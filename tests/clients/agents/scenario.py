# SPDX-License-Identifier: Apache-2.0
"""The conversation of every library in this folder: user messages, tools, and expected answers."""

from __future__ import annotations

import os
from typing import Any

BASE = os.environ["CLIENT_BASE_URL"]
# the SDKs of Anthropic append /v1 themselves
ROOT = BASE.removesuffix("/v1")
KEY, MODEL = "none", "scripted"
USERS = ["How is the weather in Oslo, and elsewhere?", "And 7 C in Fahrenheit?", "Thank you."]
ANSWERS = ["Both are wet:  🌧 and ❄.\n\n- Bergen\n- Tromsø", "That is 44.6 F.", "You are welcome."]
SYSTEM = "Be brief."


def weather(city: str) -> str:
    """The weather of a city.

    Args:
        city: Its name.
    """
    return {"Oslo": "rain, 7 C", "Bergen": "fog, 9 C", "Tromsø": "snow, -3 C"}[city]


def fahrenheit(celsius: int) -> str:
    """Converts a temperature.

    Args:
        celsius: Degrees Celsius.
    """
    return f"{celsius * 9 / 5 + 32:.1f} F"


def schema(name: str, **properties: str) -> dict[str, Any]:
    described = {name: {"type": kind} for name, kind in properties.items()}
    parameters = {"type": "object", "properties": described, "required": [*properties]}
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


FUNCTIONS = {"weather": weather, "fahrenheit": fahrenheit}
TOOLS = [schema("weather", city="string"), schema("fahrenheit", celsius="integer")]
FUNCTION_TOOLS = [{"type": "function", **tool["function"]} for tool in TOOLS]
MESSAGES_TOOLS = [{"name": tool["name"], "input_schema": tool["parameters"]} for tool in FUNCTION_TOOLS]


def check(turn: int, answer: str | None) -> None:
    assert (answer or "").strip() == ANSWERS[turn], f"turn {turn}: {answer!r} instead of {ANSWERS[turn]!r}"
