"""The clients: the command of each, the scripted replies of the model, and the expected recording."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from script import LANGCHAIN, WEATHER, Rules, note, tool_call


@dataclass(frozen=True)
class Client:
    """A client. {here} and {tools} in `command` are replaced by the paths of this folder and of the installed clients."""

    name: str
    command: list[str]
    rules: Rules = field(default_factory=lambda: WEATHER)
    env: dict[str, str] = field(default_factory=dict)
    # the expected number of paths; None if its conversations are unrelated
    paths: int | None = 1
    # turns whose context has assistant text that was tokenised again; None to skip the comparison
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
    """A JavaScript library; its program checks the replies itself."""
    return Client(name, ["node", f"{{tools}}/npm/agents/{program}.mjs"])


def program(name: str, script: str, rules: Rules, **more: Any) -> Client:
    """A command-line agent; its script starts it and checks its result."""
    return Client(name, ["bash", f"{{here}}/agents/{script}.sh"], rules, **more)


# langchain keeps one client per process, so all tests share an event loop; stream_time, which measures times, is left out
PYTEST = ["-q", "-p", "no:cacheprovider", "--tb=short", "-k", "not stream_time", "-o", "asyncio_mode=auto"]
PYTEST += ["-o", "asyncio_default_fixture_loop_scope=session", "-o", "asyncio_default_test_loop_scope=session"]

# the command with which the model of mini-swe-agent submits its result
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
    # opencode also generates a title for the conversation, in the same session
    program("opencode-titled", "opencode", OPENCODE, paths=2, least_turns=6),
    # its prompts start with a fixed exchange: a first message and its greeting
    program("qwen-code", "qwen_code", QWEN_CODE, least_turns=5),
    # a continuing process starts its prompt with a new listing of the folder
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
