# SPDX-License-Identifier: Apache-2.0
"""Microsoft Agent Framework with the API CLIENT_API, non-streaming and streaming; its session keeps the history."""

import asyncio
import os

from agent_framework import Agent
from agent_framework.openai import OpenAIChatClient, OpenAIChatCompletionClient
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather

CLIENTS = {"chat": OpenAIChatCompletionClient, "responses": OpenAIChatClient}


async def main() -> None:
    client = CLIENTS[os.environ["CLIENT_API"]](model=MODEL, base_url=BASE, api_key=KEY)
    options = {}
    if os.environ["CLIENT_API"] == "responses":
        options = {"store": False, "include": ["reasoning.encrypted_content"]}
    agent = Agent(client, SYSTEM, name="forecaster", tools=[weather, fahrenheit], default_options=options)
    session = agent.create_session()
    for turn, user in enumerate(USERS):
        if turn == 1:
            stream = agent.run(user, session=session, stream=True)
            async for _ in stream:
                pass
            reply = await stream.get_final_response()
        else:
            reply = await agent.run(user, session=session)
        check(turn, reply.messages[-1].text)


asyncio.run(main())
