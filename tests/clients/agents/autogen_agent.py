# SPDX-License-Identifier: Apache-2.0
"""AutoGen's AssistantAgent, which keeps the history, with its OpenAI client."""

import asyncio

from autogen_agentchat.agents import AssistantAgent
from autogen_ext.models.openai import OpenAIChatCompletionClient
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather

INFO = {
    "vision": False,
    "function_calling": True,
    "json_output": False,
    "structured_output": False,
    "family": "unknown",
}


async def main() -> None:
    client = OpenAIChatCompletionClient(model=MODEL, base_url=BASE, api_key=KEY, model_info=INFO)
    agent = AssistantAgent(
        "forecaster", client, tools=[weather, fahrenheit], system_message=SYSTEM, max_tool_iterations=8
    )
    for turn, user in enumerate(USERS):
        check(turn, (await agent.run(task=user)).messages[-1].content)


asyncio.run(main())
