# SPDX-License-Identifier: Apache-2.0
"""LangChain's ChatOpenAI in the agent of langchain (a langgraph graph) that keeps its thread in a checkpointer."""

from langchain.agents import create_agent
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather

model = ChatOpenAI(model=MODEL, base_url=BASE, api_key=KEY)
agent = create_agent(model, tools=[weather, fahrenheit], system_prompt=SYSTEM, checkpointer=InMemorySaver())
thread = {"configurable": {"thread_id": "one"}}
for turn, user in enumerate(USERS):
    message = {"messages": [{"role": "user", "content": user}]}
    if turn == 1:
        for _ in agent.stream(message, thread, stream_mode="messages"):
            pass
        reply = agent.get_state(thread).values
    else:
        reply = agent.invoke(message, thread)
    check(turn, reply["messages"][-1].content)
