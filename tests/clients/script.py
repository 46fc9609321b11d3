# SPDX-License-Identifier: Apache-2.0
"""The scripted replies of the model: functions from the text of a prompt to the text of the reply.

The demo's template renders tool results as user turns.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

Reply = Callable[[str], str]
# words of a user message, and the replies to it one after the other
Tasks = dict[str, list[str]]
# the reply to a prompt without a script; requests of tokentap's probe get it as well
OTHERWISE = "Nothing to add."
TURN, ROLES = "<|im_start|>", ("user\n", "system\n", "developer\n")


def tool_call(name: str, **arguments: Any) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(arguments, ensure_ascii=False)}}}\n</tool_call>'


def rules(pairs: list[tuple[str, str]], otherwise: str = OTHERWISE) -> Reply:
    """Replies with the text of the first rule whose needle is in the last user turn."""

    def reply(prompt: str) -> str:
        last = prompt.rsplit(f"{TURN}user\n", 1)[-1]
        return in_place(prompt, next((text for needle, text in pairs if needle in last), otherwise))

    return reply


def steps(tasks: Tasks, otherwise: str = OTHERWISE) -> Reply:
    """Replies with the texts of the newest task in the prompt, one after the other."""

    def reply(prompt: str) -> str:
        turns = prompt.split(TURN)
        for at in reversed(range(len(turns))):
            for words, texts in tasks.items():
                if turns[at].startswith(ROLES) and words in turns[at]:
                    step = sum(turn.startswith("assistant\n") for turn in turns[at:]) - 1
                    return in_place(prompt, texts[step] if step < len(texts) else otherwise)
        return in_place(prompt, otherwise)

    return reply


def in_place(prompt: str, text: str) -> str:
    """The text as it continues a prompt that ends in an open thought (thinking is on) or an empty one (it is off)."""
    thought = re.match(r"<think>\n(.*?)</think>\n\n", text, re.DOTALL)
    if prompt.endswith("</think>\n\n"):
        return text[thought.end() :] if thought else text
    if prompt.endswith("<think>\n"):
        return text.removeprefix("<think>\n") if thought else f"\n</think>\n\n{text}"
    return text


# Thinking and a single call, text with two parallel calls, thinking and an answer, and again a call and an answer in
# later user turns.
WEATHER = rules(
    [
        ("snow, -3 C", "<think>\nRain and snow.\n</think>\n\nBoth are wet:  🌧 and ❄.\n\n- Bergen\n- Tromsø"),
        ("rain, 7 C", f"Two more.\n{tool_call('weather', city='Bergen')}\n{tool_call('weather', city='Tromsø')}"),
        ("44.6 F", "That is 44.6 F."),
        ("weather in Oslo", f"<think>\nA tool knows.\n</think>\n\n{tool_call('weather', city='Oslo')}"),
        ("Fahrenheit", f"<think>\nOne more call.\n</think>\n\n{tool_call('fahrenheit', celsius=7)}"),
        ("Thank you", "<think>\nNo call.\n</think>\n\nYou are welcome."),
    ]
)

# The tool call that the standard tests of langchain-tests expect; their other requests have a grammar.
LANGCHAIN = rules([("weather in San Francisco", tool_call("get_weather", location="San Francisco, CA"))])


def thought(thinking: str, text: str) -> str:
    return f"<think>\n{thinking}\n</think>\n\n{text}"


def errand(write: str, failing: str, pair: str, edit: str, read: str, last: str = "The note is in place.") -> Tasks:
    """The tasks of an agent: it writes a note, makes a call that fails, makes two calls at once, edits the note and
    reports. When the user asks again, it reads the note. Some replies think, and some do not."""
    both = thought("Two at once.", f"Both.\n{pair}")
    return {
        "Write a note.": [thought("A tool can.", write), failing, both, edit, last],
        "Read it again.": [f"Once more.\n{read}", thought("It is unchanged.", "It still rains.")],
    }
