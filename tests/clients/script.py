"""The scripted replies of the model: the text of the first rule whose needle is in the last user turn of the prompt.

The demo's template renders tool results as user turns.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

Rules = list[tuple[str, str]]


def tool_call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def script(rules: Rules, otherwise: str = "Nothing to add.") -> Callable[[str], str]:
    def reply(prompt: str) -> str:
        last = prompt.rsplit("<|im_start|>user\n", 1)[-1]
        return next((text for needle, text in rules if needle in last), otherwise)

    return reply


# Thinking, a single call, text with two parallel calls, an answer, and again a call and an answer in later user turns.
WEATHER: Rules = [
    ("snow, -3 C", "Both are wet:  🌧 and ❄.\n\n- Bergen\n- Tromsø"),
    ("rain, 7 C", f"Two more.\n{tool_call('weather', city='Bergen')}\n{tool_call('weather', city='Tromsø')}"),
    ("44.6 F", "That is 44.6 F."),
    ("weather in Oslo", f"<think>\nA tool knows.\n</think>\n\n{tool_call('weather', city='Oslo')}"),
    ("Fahrenheit", f"<think>\nOne more call.\n</think>\n\n{tool_call('fahrenheit', celsius=7)}"),
    ("Thank you", "<think>\nNo call.\n</think>\n\nYou are welcome."),
]

# The tool call that the standard tests of langchain-tests expect; their other requests have a grammar.
LANGCHAIN: Rules = [("weather in San Francisco", tool_call("get_weather", location="San Francisco, CA"))]


def note(shell: str, last: str = "The note is in place.", **arguments: Any) -> Rules:
    """An agent with a shell: it writes a note, reads it and reports. When the user asks again, it reads the note again."""

    def run(command: str) -> str:
        return tool_call(shell, command=command, **arguments)

    write, read = "echo 'Tromsø: 🌧' >note.txt && echo written: $?", "echo read: $(cat note.txt)"
    return [
        ("again: ", "It still rains."),
        ("read: ", last),
        ("written: ", f"<think>\nIs it there?\n</think>\n\nReading it.\n{run(read)}"),
        ("Write a note.", f"<think>\nA shell can.\n</think>\n\n{run(write)}"),
        ("Read it again.", "Once more.\n" + run("echo again: $(cat note.txt)")),
    ]
