"""The clients: how each is started, what the model answers it, and what it has to leave."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from script import LANGCHAIN, WEATHER, Rules, note, tool_call


@dataclass(frozen=True)
class Client:
    """In `command` the words {here} and {tools} stand for folders."""

    name: str
    command: list[str]
    rules: Rules = field(default_factory=lambda: WEATHER)
    env: dict[str, str] = field(default_factory=dict)
    # None where its conversations have nothing to do with each other
    paths: int | None = 1
    # turns whose context has assistant text that was tokenised anew; None where they are not compared
    retokenised: tuple[int, ...] | None = ()
    least_turns: int = 6
    limit_seconds: int = 120

    @property
    def session(self) -> str:
        return self.name


def library(name: str, program: str, environment: str = "python", **env: str) -> Client:
    """A Python library; its program checks the replies itself."""
    return Client(name, [f"{{tools}}/{environment}/bin/python", f"{{here}}/agents/{program}.py"], env=env)


def module(name: str, program: str) -> Client:
    """A JavaScript library; the same."""
    return Client(name, ["node", f"{{tools}}/npm/agents/{program}.mjs"])


def program(name: str, script: str, rules: Rules, **more: Any) -> Client:
    """A command-line agent; its script starts it, and checks what it did."""
    return Client(name, ["bash", f"{{here}}/agents/{script}.sh"], rules, **more)


# langchain keeps a client for the life of a process, so one event loop serves all tests; one of them measures time
PYTEST = ["-q", "-p", "no:cacheprovider", "--tb=short", "-k", "not stream_time", "-o", "asyncio_mode=auto"]
PYTEST += ["-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session"]

# the command by which mini-swe-agent's model ends its work
MINI_SUBMITS = tool_call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
OPENCODE = note("bash", description="A note")
QWEN_CODE = note("run_shell_command", is_background=False)

CLIENTS: list[Client] = [
    library("openai", "openai_sdk"),
    library("litellm", "litellm_sdk", "litellm", LITELLM_LOCAL_MODEL_COST_MAP="True"),
    library("langgraph", "langgraph_agent"),
    Client(
        "langchain-tests",
        ["{tools}/python/bin/python", "-m", "pytest", *PYTEST, "{here}/agents/langchain_standard.py"],
        LANGCHAIN,
        paths=None,
        retokenised=None,
        least_turns=40,
    ),
    library("openai-agents", "openai_agents"),
    library("pydantic-ai", "pydantic_ai_agent"),
    library("strands", "strands_agent", "strands"),
    module("openai-js", "openai_sdk"),
    module("ai-sdk", "ai_sdk"),
    program("mini-swe-agent", "mini_swe_agent", note("bash", last=MINI_SUBMITS), least_turns=3),
    program("opencode", "opencode", OPENCODE, env={"CLIENT_NO_TITLE": "true"}, least_turns=5),
    # a call that names the conversation shares its session
    program("opencode-titled", "opencode", OPENCODE, paths=2, least_turns=6),
    # its first message is answered by a fixed greeting
    program("qwen-code", "qwen_code", QWEN_CODE, least_turns=5),
    # a process that continues begins with a new listing of the folder
    program(
        "qwen-code-continued",
        "qwen_code",
        QWEN_CODE,
        env={"CLIENT_CONTINUES": "true"},
        paths=2,
        retokenised=(3,),
        least_turns=5,
    ),
]
