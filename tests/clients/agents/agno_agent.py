# SPDX-License-Identifier: Apache-2.0
"""agno with the API CLIENT_API, non-streaming and streaming; its database keeps the history."""

import os

from agno.agent import Agent
from agno.db.in_memory import InMemoryDb
from agno.models.openai import OpenAIChat, OpenAIResponses
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather

models = {"chat": OpenAIChat, "responses": OpenAIResponses}
more = {"store": False, "include": ["reasoning.encrypted_content"]} if os.environ["CLIENT_API"] == "responses" else {}
agent = Agent(
    model=models[os.environ["CLIENT_API"]](id=MODEL, base_url=BASE, api_key=KEY, **more),
    tools=[weather, fahrenheit],
    system_message=SYSTEM,
    db=InMemoryDb(),
    add_history_to_context=True,
    telemetry=False,
)
for turn, user in enumerate(USERS):
    if turn == 1:
        *_, reply = agent.run(user, session_id="one", stream=True, yield_run_output=True)
    else:
        reply = agent.run(user, session_id="one")
    # the content of the reply also has the text beside the calls
    check(turn, reply.messages[-1].content)
