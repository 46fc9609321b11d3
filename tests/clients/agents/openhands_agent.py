# SPDX-License-Identifier: Apache-2.0
"""The OpenHands SDK, which calls the model through litellm; each user message continues one conversation."""

from collections.abc import Sequence
from typing import Any

from openhands.sdk import LLM, Action, Agent, Conversation, Observation, TextContent, Tool, ToolDefinition
from openhands.sdk.conversation import get_agent_final_response
from openhands.sdk.tool import ToolExecutor, register_tool
from pydantic import SecretStr
from scenario import BASE, KEY, MODEL, USERS, check, fahrenheit, weather


class WeatherAction(Action):
    city: str


class WeatherObservation(Observation):
    pass


class WeatherExecutor(ToolExecutor[WeatherAction, WeatherObservation]):
    def __call__(self, action: WeatherAction, conversation: Any = None) -> WeatherObservation:
        return WeatherObservation(content=[TextContent(text=weather(action.city))])


class WeatherTool(ToolDefinition[WeatherAction, WeatherObservation]):
    name = "weather"

    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition[Any, Any]]:
        kinds = {"action_type": WeatherAction, "observation_type": WeatherObservation}
        return [cls(description="The weather of a city.", executor=WeatherExecutor(), **kinds)]


class FahrenheitAction(Action):
    celsius: int


class FahrenheitObservation(Observation):
    pass


class FahrenheitExecutor(ToolExecutor[FahrenheitAction, FahrenheitObservation]):
    def __call__(self, action: FahrenheitAction, conversation: Any = None) -> FahrenheitObservation:
        return FahrenheitObservation(content=[TextContent(text=fahrenheit(action.celsius))])


class FahrenheitTool(ToolDefinition[FahrenheitAction, FahrenheitObservation]):
    name = "fahrenheit"

    @classmethod
    def create(cls, conv_state: Any) -> Sequence[ToolDefinition[Any, Any]]:
        kinds = {"action_type": FahrenheitAction, "observation_type": FahrenheitObservation}
        return [cls(description="Converts a temperature.", executor=FahrenheitExecutor(), **kinds)]


register_tool("weather", WeatherTool)
register_tool("fahrenheit", FahrenheitTool)
llm = LLM(usage_id="agent", model=f"openai/{MODEL}", base_url=BASE, api_key=SecretStr(KEY), num_retries=0)
agent = Agent(llm=llm, tools=[Tool(name="weather"), Tool(name="fahrenheit")])
conversation = Conversation(agent=agent, workspace=".", visualizer=None)
for turn, user in enumerate(USERS):
    conversation.send_message(user)
    conversation.run()
    check(turn, get_agent_final_response(conversation.state.events))
