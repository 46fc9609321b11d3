# SPDX-License-Identifier: Apache-2.0
"""What docs/compatibility.md calls the clients: each component, the package whose version counts, and the clients that test it."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

# prints the version of an installed package
INSTALLED = "import importlib.metadata, sys; print(importlib.metadata.version(sys.argv[1]))"


@dataclass(frozen=True)
class Component:
    name: str
    # "libraries" or "agents"
    group: str
    # the folder of installed clients, and the package in it
    environment: str
    package: str
    # names of clients, separated by spaces
    clients: str

    def version(self, tools: Path) -> str:
        """The version that the installed package reports."""
        if self.environment == "npm":
            package = tools / "npm/node_modules" / self.package / "package.json"
            return str(json.loads(package.read_text())["version"])
        command = [str(tools / self.environment / "bin/python"), "-c", INSTALLED, self.package]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def library(name: str, environment: str, package: str, clients: str) -> Component:
    return Component(name, "libraries", environment, package, clients)


def agent(name: str, environment: str, package: str, clients: str) -> Component:
    return Component(name, "agents", environment, package, clients)


COMPONENTS = [
    agent(
        "Claude Code (claude-agent-sdk)",
        "claude",
        "claude-agent-sdk",
        "claude-code claude-code-without-thinking claude-code-default-arguments claude-code-rewrites-calls "
        "claude-code-breaks-call claude-code-delegates claude-code-compacts claude-code-overflows "
        "claude-code-searches-tools claude-code-looks",
    ),
    agent("LiteLLM (proxy)", "frameworks", "litellm", "claude-code-litellm-proxy"),
    agent("Codex", "npm", "@openai/codex", "codex codex-delegates codex-compacts codex-looks"),
    agent(
        "opencode",
        "npm",
        "opencode-ai",
        "opencode opencode-titled opencode-messages opencode-responses opencode-delegates opencode-breaks-calls",
    ),
    agent("Qwen Code", "npm", "@qwen-code/qwen-code", "qwen-code qwen-code-continued qwen-code-messages"),
    agent("pi", "npm", "@mariozechner/pi-coding-agent", "pi"),
    agent("Copilot CLI", "npm", "@github/copilot", "copilot copilot-responses"),
    agent("Continue", "npm", "@continuedev/cli", "continue"),
    agent("Terminus 2 (harbor)", "python312", "harbor", "terminus"),
    agent("verifiers", "verifiers", "verifiers", "verifiers"),
    agent("mini-swe-agent", "litellm", "mini-swe-agent", "mini-swe-agent mini-swe-agent-responses"),
    library("openai (Python)", "python", "openai", "openai openai-responses"),
    library("openai (JavaScript)", "npm", "openai", "openai-js"),
    library("anthropic (Python)", "python", "anthropic", "anthropic anthropic-async anthropic-tool-runner"),
    library("anthropic (JavaScript)", "npm", "@anthropic-ai/sdk", "anthropic-js"),
    library("AI SDK", "npm", "ai", "ai-sdk ai-sdk-messages ai-sdk-responses"),
    library("LiteLLM", "litellm", "litellm", "litellm"),
    library("LangGraph", "python", "langgraph", "langgraph"),
    library(
        "LangChain",
        "python",
        "langchain-core",
        "langchain-tests langchain-tests-messages langchain-tests-responses",
    ),
    library("LangChain (JavaScript)", "npm", "langchain", "langchain-js"),
    library("openai-agents", "python", "openai-agents", "openai-agents openai-agents-responses"),
    library(
        "pydantic-ai", "python", "pydantic-ai-slim", "pydantic-ai pydantic-ai-messages pydantic-ai-responses"
    ),
    library("strands-agents", "strands", "strands-agents", "strands"),
    library("deepagents", "frameworks", "deepagents", "deepagents deepagents-delegates"),
    library("inspect-ai", "frameworks", "inspect-ai", "inspect-ai"),
    library(
        "agent-framework", "frameworks", "agent-framework-core", "agent-framework agent-framework-responses"
    ),
    library("agno", "frameworks", "agno", "agno agno-responses"),
    library("AutoGen", "frameworks", "autogen-agentchat", "autogen"),
    library("google-adk", "frameworks", "google-adk", "google-adk"),
    library("Agent Lightning", "python312", "agentlightning", "agent-lightning"),
    library("OpenHands SDK", "python312", "openhands-sdk", "openhands"),
]
