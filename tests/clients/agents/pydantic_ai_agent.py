# SPDX-License-Identifier: Apache-2.0
"""Pydantic AI with the model of the API CLIENT_API, non-streaming and streaming alternately."""

import asyncio
import os

from anthropic import AsyncAnthropic
from pydantic_ai import Agent
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider
from scenario import BASE, KEY, MODEL, ROOT, SYSTEM, USERS, check, fahrenheit, weather


def model() -> Model:
    match os.environ["CLIENT_API"]:
        case "messages":
            client = AsyncAnthropic(base_url=ROOT, api_key=KEY, max_retries=0)
            return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))
        case "responses":
            return OpenAIResponsesModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))
        case _:
            return OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))


async def main() -> None:
    agent = Agent(model(), instructions=SYSTEM, tools=[weather, fahrenheit])
    history = None
    for turn, user in enumerate(USERS):
        if turn == 1:
            async with agent.run_stream(user, message_history=history) as result:
                answer = await result.get_output()
        else:
            result = await agent.run(user, message_history=history)
            answer = result.output
        history = result.all_messages()
        check(turn, answer)


asyncio.run(main())
