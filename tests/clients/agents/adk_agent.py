# SPDX-License-Identifier: Apache-2.0
"""Google's Agent Development Kit, which calls the model through litellm; its session keeps the history."""

import asyncio

from google.adk.agents import LlmAgent
from google.adk.models.lite_llm import LiteLlm
from google.adk.runners import InMemoryRunner
from google.genai import types
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


async def main() -> None:
    model = LiteLlm(model=f"openai/{MODEL}", api_base=BASE, api_key=KEY)
    agent = LlmAgent(name="forecaster", model=model, instruction=SYSTEM, tools=[weather, fahrenheit])
    runner = InMemoryRunner(agent, app_name="forecast")
    session = await runner.session_service.create_session(app_name="forecast", user_id="user")
    for turn, user in enumerate(USERS):
        message = types.Content(role="user", parts=[types.Part(text=user)])
        answer = ""
        async for event in runner.run_async(user_id="user", session_id=session.id, new_message=message):
            if event.is_final_response():
                answer = "".join(part.text or "" for part in event.content.parts if not part.thought)
        check(turn, answer)


asyncio.run(main())
