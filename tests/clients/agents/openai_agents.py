# SPDX-License-Identifier: Apache-2.0
"""The agents SDK with the API CLIENT_API, non-streaming and streaming alternately; its session keeps the history."""

import asyncio
import os

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    SQLiteSession,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


async def main() -> None:
    set_tracing_disabled(True)
    models = {"chat": OpenAIChatCompletionsModel, "responses": OpenAIResponsesModel}
    model = models[os.environ["CLIENT_API"]](MODEL, AsyncOpenAI(base_url=BASE, api_key=KEY, max_retries=0))
    tools = [function_tool(weather), function_tool(fahrenheit)]
    agent = Agent("forecaster", instructions=SYSTEM, model=model, tools=tools)
    if os.environ["CLIENT_API"] == "responses":
        agent.model_settings = ModelSettings(store=False, response_include=["reasoning.encrypted_content"])
    session = SQLiteSession("one")
    for turn, user in enumerate(USERS):
        if turn == 1:
            result = Runner.run_streamed(agent, user, session=session)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, user, session=session)
        check(turn, result.final_output)


asyncio.run(main())
