# SPDX-License-Identifier: Apache-2.0
"""agent.py [--base URL --control URL --model FOLDER]

Concurrent agents of strands-agents with tools generate through tokentap with the client and model of strands-sglang. The rollout of each
model must equal tokentap's export of the session, bit by bit, and the exported entropies must equal those of the replies. Prints a line
per check; exit status 1 if one failed.

Without arguments it starts $TOKENTAP demo. The demo's language model has learnt to call tools from a few dialogues, so the calls are
sampled and parsed by strands-sglang's own parser; the checks require that there are some. With arguments it uses a server with random
weights, which never samples a call. There a parser of this file treats each of the first two answers as a call; the agent's loop, the
tool and its result in the next prompt are the same. Its answers end at any of 9478 stop tokens, because <|im_end|> is as rare as any
other token.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

from strands import Agent, tool
from strands.types.exceptions import EventLoopException, MaxTokensReachedException
from strands_sglang import LoopLimiter, LoopLimitReachedError, SGLangModel
from strands_sglang.tool_parsers import HermesToolParser, ToolParser
from strands_sglang.tool_parsers.base import ToolParseResult
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from tokentap import Client
from tokentap.strands import SessionClient, episodes, rollout

ASSETS = Path(__file__).resolve().parents[3] / "src" / "demo" / "assets"
SYSTEM = "You are the keeper of a lighthouse. Answer briefly and kindly."
QUESTIONS = ["What is the weather today?", "When is high water on Monday?"]
failed: list[str] = []


def check(name: str, *problems: str, note: str = "") -> None:
    """Prints the result."""
    failed.extend([name] * bool(problems))
    print("FAIL" if problems else "ok  ", name, *([f"({note})"] if note else []), *problems, sep="  ", flush=True)


def differ(what: str, got: Any, want: Any) -> list[str]:
    """A list with both values, shortened, if they differ."""
    return [] if got == want else [f"{what}: {str(got)[:200]} instead of {str(want)[:200]}"]


@tool
def weather(place: str = "here") -> str:
    """Tells the weather.

    Args:
        place: Where.
    """
    return f"Wind west, force 4. Visibility at {place} good, nine miles."


@tool
def tides(day: str = "today") -> str:
    """Tells the tides.

    Args:
        day: When.
    """
    return f"High water {day} 06:12, low water 12:25."


class RecordingClient(SessionClient):
    """Records the replies before strands-sglang parses them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.replies: list[dict[str, Any]] = []

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        reply = await super().generate(input_ids, **fields)
        self.replies.append(reply)
        return reply


class FirstTwoAreCalls(ToolParser):
    """Parses the first two replies as tool calls, regardless of their text."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def parse(self, text: str) -> list[ToolParseResult]:
        self.calls += 1
        if self.calls > 2:
            return []
        return [ToolParseResult(id=f"call_{self.calls:04d}", name="weather", input={"place": text[-12:]})]


@dataclass
class Run:
    """A finished episode."""

    client: RecordingClient
    model: SGLangModel
    # names of the called tools
    called: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Setting:
    """The server and the questions."""

    base: str
    tokenizer: PreTrainedTokenizerBase
    sampling: dict[str, Any]
    has_calls: bool

    async def episode(self, number: int) -> Run:
        """Runs one agent with one question."""
        async with RecordingClient(self.base, session=f"strands-{uuid4().hex[:8]}-{number}", max_retries=2) as client:
            model = SGLangModel(
                client=client,
                tokenizer=self.tokenizer,
                tool_parser=HermesToolParser() if self.has_calls else FirstTwoAreCalls(),
                sampling_params={**self.sampling, "sampling_seed": number},
            )
            run = Run(client, model)
            agent = Agent(
                model=model,
                tools=[weather, tides],
                system_prompt=SYSTEM,
                callback_handler=None,
                hooks=[LoopLimiter(max_tool_iters=3)],
            )
            try:
                # at these limits strands raises an error; the rollout of the episode is still checked
                with suppress(MaxTokensReachedException):
                    await agent.invoke_async(QUESTIONS[number % len(QUESTIONS)])
            except EventLoopException as error:
                if not isinstance(error.original_exception, LoopLimitReachedError):
                    raise
            blocks = [block for message in agent.messages for block in message["content"]]
            run.called = [block["toolUse"]["name"] for block in blocks if "toolUse" in block]
            return run


def compare(control: Client, run: Run) -> None:
    """Compares the rollout of the model and the entropies of the replies with the session."""
    session, kept = run.client.session, run.model.rollout
    found = rollout(control, session)
    problems = [
        *differ("paths", len(episodes(control, session)), 1),
        *differ("token_ids", found.rollout.token_ids, kept.token_ids),
        *differ("loss_mask", found.rollout.loss_mask, kept.loss_mask),
        *differ("logprobs", found.rollout.logprobs, kept.logprobs),
        *differ("segment_info", found.rollout.segment_info, kept.segment_info),
        *differ("initial_prompt_length", found.rollout.initial_prompt_length, kept.initial_prompt_length),
        *differ("positions without a logprob", [at for at, x in enumerate(found.rollout.logprobs) if x is None], [0]),
    ]
    returned = [x for reply in run.client.replies for x in reply["meta_info"]["output_token_entropy"]]
    masked = [x for x, mask in zip(found.entropy, kept.loss_mask, strict=True) if mask]
    problems += differ("entropies", masked, returned) + differ("entropies per sampled token", len(returned), sum(kept.loss_mask))
    if any(x is None for x in returned):
        problems.append("an entropy is missing")
    if any(x is not None for x, mask in zip(found.entropy, kept.loss_mask, strict=True) if not mask):
        problems.append("an entropy at a token that was not sampled")
    turns, calls = len(run.client.replies), len(run.called)
    check(
        f"episode {session[-2:].strip('-')}",
        *problems,
        note=f"{turns} turns, {calls} calls, {len(masked)} of {len(kept)} sampled",
    )


def names() -> None:
    """An invalid session name is rejected early: tokentap would record it under another name."""
    problems = []
    for name in ("", "my episode 1", "a/b", "x" * 129):
        with suppress(ValueError):
            SessionClient("http://127.0.0.1:1", session=name)
            problems.append(f"{name!r} was accepted")
    check("names", *problems)


async def prove(setting: Setting, control: str, count: int) -> None:
    """Runs episodes concurrently, then checks them in sequence."""
    names()
    runs = await asyncio.gather(*(setting.episode(number) for number in range(count)))
    with Client(setting.base, control) as client:
        for run in runs:
            compare(client, run)
    several = [run for run in runs if len(run.client.replies) > 1]
    check(
        "turns", *([] if several else ["no episode has two turns"]), note=f"{len(several)} of {count} episodes have several"
    )
    results = sum(text.count("force 4") + text.count("06:12, low") for text in map(observations, several))
    problems = [] if results else ["no prompt has a tool result"]
    check("tools", *problems, note=f"{results} tool results in rollouts, between sampled tokens")


def observations(run: Run) -> str:
    """The texts of the later prompts of an episode."""
    kept, at, texts = run.model.rollout, 0, []
    for is_output, length in kept.segment_info:
        if not is_output and at:
            texts.append(run.model.tokenizer.decode(kept.token_ids[at : at + length]))
        at += length
    return " ".join(texts)


@contextmanager
def demo() -> Iterator[tuple[str, str]]:
    """`tokentap demo` on free ports: data and control."""
    command = [
        os.environ["TOKENTAP"],
        "demo",
        "--listen",
        "127.0.0.1:0",
        "--control-listen",
        "127.0.0.1:0",
        "--log",
        "warn",
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            output = ""
            for line in process.stdout or ():
                output += line
                if line.startswith("Metrics:"):
                    break
            data, control = re.search(r"(http://[\d.:]+)/generate", output), re.search(r"(http://[\d.:]+)/v1", output)
            if not data or not control:
                raise RuntimeError(f"the demo did not start: {output}")
            yield data[1], control[1]
        finally:
            process.terminate()


def main() -> int:
    args = argparse.ArgumentParser()
    args.add_argument("--base")
    args.add_argument("--control")
    args.add_argument("--model", type=Path)
    parsed = args.parse_args()
    if parsed.base:
        stops = list(range(0, 151643, 16))
        sampling = {"temperature": 1.0, "max_new_tokens": 200, "stop_token_ids": stops}
        setting = Setting(parsed.base, AutoTokenizer.from_pretrained(parsed.model), sampling, has_calls=False)
        asyncio.run(prove(setting, parsed.control, 4))
    else:
        with demo() as (data, control):
            tokenizer = AutoTokenizer.from_pretrained(ASSETS)
            sampling = {"temperature": 0.6, "max_new_tokens": 150, "stop_token_ids": [tokenizer.eos_token_id]}
            asyncio.run(prove(Setting(data, tokenizer, sampling, has_calls=True), control, 16))
    print(f"{len(failed)} FAIL")
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
