# SPDX-License-Identifier: Apache-2.0
"""Inspect's generate() with tools: an evaluation of one sample with three user messages."""

from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.model import get_model
from inspect_ai.solver import generate, system_message, use_tools, user_message
from inspect_ai.tool import Tool, tool
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


@tool(name="weather")
def weather_tool() -> Tool:
    async def execute(city: str) -> str:
        """The weather of a city.

        Args:
            city: Its name.
        """
        return weather(city)

    return execute


@tool(name="fahrenheit")
def fahrenheit_tool() -> Tool:
    async def execute(celsius: int) -> str:
        """Converts a temperature.

        Args:
            celsius: Degrees Celsius.
        """
        return fahrenheit(celsius)

    return execute


solver = [system_message(SYSTEM), use_tools(weather_tool(), fahrenheit_tool()), generate()]
for user in USERS[1:]:
    solver += [user_message(user), generate()]
model = get_model(f"openai-api/tokentap/{MODEL}", base_url=BASE, api_key=KEY)
(log,) = evaluate(Task(dataset=[Sample(USERS[0])], solver=solver), model=model, display="none", log_dir="logs")
assert log.status == "success", log.error
answers = [
    message.text for message in log.samples[0].messages if message.role == "assistant" and not message.tool_calls
]
for turn, answer in enumerate(answers):
    check(turn, answer)
assert len(answers) == len(USERS), answers
