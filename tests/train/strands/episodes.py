# SPDX-License-Identifier: Apache-2.0
"""An agent of strands-agents on its OpenAI model, for `--agent` of python/examples/train/agent.py.

Reads a line of JSON for each episode and prints a line for each, in the same order. The agent knows only the base URL
of its session.
"""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import suppress
from typing import Any

from calculator import EXAMPLE, MOST_CALLS, SYSTEM, calculator
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.types.exceptions import MaxTokensReachedException

Json = dict[str, Any]


def beginning() -> list[Json]:
    """The example as messages of strands."""
    question, expression, result = EXAMPLE
    call = {"toolUseId": "call_0", "name": "calculator", "input": {"expression": expression}}
    returned = {"toolUseId": "call_0", "status": "success", "content": [{"text": result}]}
    return [
        {"role": "user", "content": [{"text": question}]},
        {"role": "assistant", "content": [{"toolUse": call}]},
        {"role": "user", "content": [{"toolResult": returned}]},
        {"role": "assistant", "content": [{"text": result}]},
    ]


async def episode(task: Json) -> Json:
    """One episode of a new agent."""
    results: list[str] = []

    @tool(name="calculator")
    def compute(expression: str) -> str:
        """Computes.

        Args:
            expression: Two numbers with a sign between them.
        """
        results.append(calculator(expression))
        return results[-1]

    model = OpenAIModel(
        client_args={"base_url": task["base_url"], "api_key": "none"},
        model_id="policy",
        params={"temperature": task["temperature"], "top_p": 1.0, "max_tokens": task["tokens"]},
    )
    agent = Agent(model=model, tools=[compute], system_prompt=SYSTEM, messages=beginning(), callback_handler=None)
    # a turn that was cut off ends the episode
    with suppress(MaxTokensReachedException):
        await agent.invoke_async(task["question"], limits={"turns": MOST_CALLS + 1})
    return {"text": text(agent.messages[-1]), "results": results}


def text(message: Json) -> str:
    """The text of a last message of the assistant without calls."""
    blocks = message["content"]
    if message["role"] != "assistant" or any("toolUse" in block for block in blocks):
        return ""
    return "".join(block.get("text", "") for block in blocks)


async def main() -> None:
    """Runs all episodes at once."""
    for end in await asyncio.gather(*(episode(json.loads(line)) for line in sys.stdin)):
        print(json.dumps(end))


if __name__ == "__main__":
    asyncio.run(main())
