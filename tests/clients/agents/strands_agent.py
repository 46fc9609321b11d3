# SPDX-License-Identifier: Apache-2.0
"""Strands Agents with its OpenAI model, which always streams."""

from scenario import BASE, KEY, MODEL, SYSTEM, USERS, check, fahrenheit, weather
from strands import Agent, tool
from strands.models.openai import OpenAIModel

model = OpenAIModel(client_args={"base_url": BASE, "api_key": KEY}, model_id=MODEL)
agent = Agent(model=model, system_prompt=SYSTEM, tools=[tool(weather), tool(fahrenheit)], callback_handler=None)
for turn, user in enumerate(USERS):
    check(turn, str(agent(user)))
