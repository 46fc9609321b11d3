"""Pydantic AI, non-streaming and streaming alternately."""

import asyncio

from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


async def main() -> None:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key=KEY))
    agent = Agent(model, instructions=SYSTEM, tools=[weather, fahrenheit])
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
