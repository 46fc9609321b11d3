"""The agents SDK with chat completions, non-streaming and streaming alternately; its session keeps the history."""

import asyncio

from agents import Agent, OpenAIChatCompletionsModel, Runner, SQLiteSession, function_tool, set_tracing_disabled
from openai import AsyncOpenAI
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather


async def main() -> None:
    set_tracing_disabled(True)
    model = OpenAIChatCompletionsModel(MODEL, AsyncOpenAI(base_url=BASE, api_key=KEY))
    tools = [function_tool(weather), function_tool(fahrenheit)]
    agent = Agent("forecaster", instructions=SYSTEM, model=model, tools=tools)
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
