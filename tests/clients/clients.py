# SPDX-License-Identifier: Apache-2.0
"""The libraries: the command of each, and the scripted replies of the model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from script import LANGCHAIN, WEATHER, Reply, steps, thought, tool_call

# the paths of the APIs; CLIENT_API is the key
APIS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


@dataclass(frozen=True)
class Client:
    """A client. {here} and {tools} in `command` become the paths of this folder and of the installed clients."""

    name: str
    # the folders of installed clients that it needs, separated by spaces
    environments: str
    # the API of all its requests
    api: str
    command: list[str]
    # $WORK in a reply is replaced by the path of the folder `work` in the home of the client
    reply: Reply = WEATHER
    env: dict[str, str] = field(default_factory=dict)
    # requests that are refused, after which the client sends others
    refused: int = 0
    least_turns: int = 6
    # $WORK/screen-1.png and so on: it sends each of them, and the engine serves a vision model
    screenshots: int = 0
    limit_seconds: int = 120

    @property
    def session(self) -> str:
        return self.name

    @property
    def needs(self) -> list[str]:
        """What run.sh installs for it: `templates` are those of the vision model."""
        return self.environments.split() + ["templates"] * (self.screenshots > 0)


def library(name: str, program: str, api: str = "chat", environment: str = "python", **more: Any) -> Client:
    """A Python library; its program checks the replies itself."""
    command = [f"{{tools}}/{environment}/bin/python", f"{{here}}/agents/{program}.py"]
    return Client(name, environment, api, command, **more)


def module(name: str, program: str, api: str = "chat") -> Client:
    """A JavaScript library; its program checks the replies itself."""
    return Client(name, "npm", api, ["node", f"{{tools}}/npm/agents/{program}.mjs"])


def langchain_tests(name: str, api: str) -> Client:
    """The standard tests of langchain-tests for a chat model of an API. One test measures times and is left out."""
    # langchain keeps one client per process, so all tests share an event loop
    options = ["-q", "-p", "no:cacheprovider", "--tb=short", "-k", "not stream_time", "-o", "asyncio_mode=auto"]
    options += ["-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session"]
    command = ["{tools}/python/bin/python", "-m", "pytest", *options, "{here}/agents/langchain_standard.py"]
    return Client(name, "python", api, command, LANGCHAIN, least_turns=40)


DEEPAGENTS_DELEGATES = {
    "Ask an agent.": [
        thought(
            "An agent can.",
            tool_call("task", description="Count the words of the note.", subagent_type="general-purpose"),
        ),
        "Two words.",
    ],
    "Count the words of the note.": [
        thought("A tool can.", tool_call("fahrenheit", celsius=2)),
        tool_call("fahrenheit", celsius=3),
        "I counted two.",
    ],
}
# keeps litellm from downloading a list of prices
PRICES = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}

LIBRARIES: list[Client] = [
    library("openai", "openai_sdk"),
    library("litellm", "litellm_sdk", "chat", "litellm", env=PRICES),
    library("langgraph", "langgraph_agent"),
    langchain_tests("langchain-tests", "chat"),
    library("openai-agents", "openai_agents"),
    library("pydantic-ai", "pydantic_ai_agent"),
    library("strands", "strands_agent", "chat", "strands"),
    module("openai-js", "openai_sdk"),
    module("ai-sdk", "ai_sdk"),
    library("anthropic", "anthropic_sdk", "messages"),
    library("anthropic-async", "anthropic_async", "messages"),
    # each tool runner first asks for a message thread
    library("anthropic-tool-runner", "anthropic_tool_runner", "messages", refused=3),
    langchain_tests("langchain-tests-messages", "messages"),
    library("pydantic-ai-messages", "pydantic_ai_agent", "messages"),
    module("anthropic-js", "anthropic_sdk", "messages"),
    module("ai-sdk-messages", "ai_sdk", "messages"),
    library("openai-responses", "openai_responses", "responses"),
    langchain_tests("langchain-tests-responses", "responses"),
    library("openai-agents-responses", "openai_agents", "responses"),
    library("pydantic-ai-responses", "pydantic_ai_agent", "responses"),
    module("ai-sdk-responses", "ai_sdk", "responses"),
    module("langchain-js", "langchain_agent"),
    library("deepagents", "deep_agent", environment="frameworks"),
    # a sub-agent has another conversation in the same session
    library(
        "deepagents-delegates",
        "deep_agent",
        environment="frameworks",
        reply=steps(DEEPAGENTS_DELEGATES),
        env={"CLIENT_TASK": "Ask an agent.", "CLIENT_ANSWER": "Two words."},
        least_turns=4,
    ),
    library("inspect-ai", "inspect_agent", environment="frameworks"),
    library("agent-framework", "agent_framework_agent", environment="frameworks"),
    library("agent-framework-responses", "agent_framework_agent", "responses", "frameworks"),
    library("agno", "agno_agent", environment="frameworks"),
    library("agno-responses", "agno_agent", "responses", "frameworks"),
    library("autogen", "autogen_agent", environment="frameworks"),
    library("google-adk", "adk_agent", environment="frameworks", env=PRICES),
    library("agent-lightning", "agent_lightning", environment="python312"),
    library("openhands", "openhands_agent", environment="python312", env=PRICES),
]
