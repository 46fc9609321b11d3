# SPDX-License-Identifier: Apache-2.0
"""The loop of train.py with an agent that calls a tool: each sample is a chat of up to three turns through tokentap.

agent.py --model FOLDER --work FOLDER [options of train.py] [--agent COMMAND]

The agent is any program that talks to an OpenAI endpoint. Here it is the SDK in a loop. COMMAND runs another one: it
reads a line of JSON for each episode (`base_url`, `question`, `temperature`, `tokens`), and prints a line for each, in
the same order (`text` of the last message, `results` of the tool). An episode that fails ends the training. The rows
hold the sampled tokens of all turns; the results of the tool are masked. tokentap needs a chat template that shows
tools, such as tools.jinja.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from calculator import EXAMPLE, MOST_CALLS, SYSTEM, calculator, products, reward
from openai import OpenAI
from sums import Sum
from train import Run, options
from transformers import logging

Json = dict[str, Any]

TOOL = {
    "name": "calculator",
    "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}, "required": ["expression"]},
}


def call(expression: str) -> Json:
    """A call in a message of the assistant."""
    function = {"name": "calculator", "arguments": json.dumps({"expression": expression})}
    return {"id": "call_0", "type": "function", "function": function}


def beginning(question: str) -> list[Json]:
    """The messages of the first turn."""
    example, expression, result = EXAMPLE
    return [
        {"role": "system", "content": SYSTEM},
        {"role": "user", "content": example},
        {"role": "assistant", "content": None, "tool_calls": [call(expression)]},
        {"role": "tool", "tool_call_id": "call_0", "content": result},
        {"role": "assistant", "content": result},
        {"role": "user", "content": question},
    ]


def result(arguments: str) -> str:
    """What the tool returns for the arguments that the model wrote."""
    try:
        return calculator(json.loads(arguments)["expression"])
    except (ValueError, TypeError, KeyError):
        return "error: the argument is an expression"


def episode(task: Json) -> Json:
    """One episode of the SDK."""
    with OpenAI(base_url=task["base_url"], api_key="none") as client:
        return chat(client, task)


def chat(client: OpenAI, task: Json) -> Json:
    """The turns of an episode."""
    messages, results = beginning(task["question"]), []
    for _ in range(MOST_CALLS + 1):
        reply = client.chat.completions.create(
            model="policy",
            messages=messages,
            tools=[{"type": "function", "function": TOOL}],
            temperature=task["temperature"],
            top_p=1.0,
            max_tokens=task["tokens"],
        )
        message = reply.choices[0].message
        if not message.tool_calls:
            return {"text": message.content or "", "results": results}
        messages.append(message.model_dump(exclude_none=True))
        for made in message.tool_calls:
            results.append(result(made.function.arguments))
            messages.append({"role": "tool", "tool_call_id": made.id, "content": results[-1]})
    return {"text": "", "results": results}


class AgentRun(Run):
    """The training; only the samples are made in another way."""

    def tasks(self) -> list[Sum]:
        """The questions of this step."""
        return products(self.options.prompts, f"{self.options.seed}-{self.step}")

    def sample(self, tasks: list[Sum]) -> tuple[list[str], list[float]]:
        """Runs a group of episodes for each task and sets the rewards; each episode is a session."""
        each = [task for task in tasks for _ in range(self.options.samples)]
        names = [f"{self.name}-{self.step}-{at}" for at in range(len(each))]
        ended = self.episodes(
            [
                {
                    "base_url": f"{self.options.url}/sessions/{name}/v1",
                    "question": task.prompt,
                    "temperature": self.options.temperature,
                    "tokens": self.options.tokens,
                }
                for name, task in zip(names, each, strict=True)
            ]
        )
        rewards = [reward(end["text"], end["results"], task.answer) for end, task in zip(ended, each, strict=True)]
        for name, value in zip(names, rewards, strict=True):
            self.client.reward(name, value)
        return names, rewards

    def episodes(self, tasks: list[Json]) -> list[Json]:
        """Runs all at once, here or by the command."""
        if not self.options.agent:
            with ThreadPoolExecutor(len(tasks)) as pool:
                return list(pool.map(episode, tasks))
        lines = "".join(f"{json.dumps(task)}\n" for task in tasks)
        command = shlex.split(self.options.agent)
        made = subprocess.run(command, input=lines, text=True, stdout=subprocess.PIPE, check=True)
        ended = [json.loads(line) for line in made.stdout.splitlines()]
        if len(ended) != len(tasks):
            raise RuntimeError(f"{self.options.agent}: {len(ended)} lines for {len(tasks)} episodes")
        return ended


def main() -> None:
    """Trains until the step that was asked for."""
    parser = options()
    parser.description = __doc__
    parser.add_argument("--agent", help="the command that runs episodes")
    # `tokens` of a turn
    parser.set_defaults(tokens=24, prompts=4, learning_rate=2e-5)
    logging.disable_progress_bar()
    run = AgentRun(parser.parse_args())
    while run.step < run.options.steps:
        run.one_step()


if __name__ == "__main__":
    main()
