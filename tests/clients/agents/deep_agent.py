# SPDX-License-Identifier: Apache-2.0
"""deepagents with ChatOpenAI: the conversation of the scenario, or (CLIENT_TASK) a task for a sub-agent."""

import os

from deepagents import create_deep_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather

model = ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY, max_retries=0)
tools = [weather, fahrenheit]
agent = create_deep_agent(model=model, tools=tools, system_prompt=SYSTEM, checkpointer=InMemorySaver())
thread = {"configurable": {"thread_id": "one"}}
if task := os.environ.get("CLIENT_TASK"):
    reply = agent.invoke({"messages": [{"role": "user", "content": task}]}, thread)
    assert reply["messages"][-1].content == os.environ["CLIENT_ANSWER"], reply["messages"][-1]
else:
    for turn, user in enumerate(USERS):
        reply = agent.invoke({"messages": [{"role": "user", "content": user}]}, thread)
        check(turn, reply["messages"][-1].content)
