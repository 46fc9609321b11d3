# SPDX-License-Identifier: Apache-2.0
"""A generation that new weights abort, compared with verl's client for partial rollouts."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from account import Account
from tokentap import Generation
from tokentap.verl import _engine as engine
from tokentap.verl._budget import Budget
from tokentap.verl._endpoints import Endpoint
from tokentap.verl._policy import Policy

PROMPT = [1, 2, 3]


def reply(ids: list[int], version: str, finish: str, logprobs: bool = True) -> Generation:
    """A reply of tokentap: logprob -id, entropy id / 10."""
    meta: dict[str, Any] = {
        "finish_reason": {"type": finish},
        "weight_versions": [{"version": version, "start": 0, "end": len(ids)}],
        "output_token_logprobs": [[-float(one), one, None] for one in ids] if logprobs else [],
        "output_token_entropy": [one / 10 for one in ids],
        "entropy_info": {"source": "top_k"},
    }
    return Generation.of({"text": "", "output_ids": ids, "meta_info": meta}, {})


@dataclass
class Scripted:
    """A client with these replies; `asked` has the ids and the token limit of each call."""

    replies: list[Generation]
    asked: list[tuple[list[int], int]] = field(default_factory=list)

    async def generate(self, *, input_ids: list[int], sampling_params: dict[str, Any], **_: Any) -> Generation:
        """The next reply."""
        self.asked.append((input_ids, sampling_params["max_new_tokens"]))
        return self.replies.pop(0)


def check(account: Account) -> None:
    """An aborted generation continues after the received tokens within the remaining limit. Without resuming, the received tokens are
    the result."""
    # the second reply is discarded with its version
    replies = [reply([7, 8], "4", "abort"), reply([9], "3", "abort", logprobs=False), reply([10], "6", "stop")]
    client = Scripted(list(replies))
    output, sampled = generate(client, resume=True)
    problems = []
    if client.asked != [([*PROMPT], 16), ([*PROMPT, 7, 8], 14), ([*PROMPT, 7, 8], 14)]:
        problems.append(f"asked {client.asked}")
    if (output.token_ids, output.log_probs, output.stop_reason) != ([7, 8, 10], [-7.0, -8.0, -10.0], "stop"):
        problems.append(f"{output}")
    if (sampled.prompt_ids, sampled.entropy) != (PROMPT, [0.7, 0.8, 1.0]):
        problems.append(f"{sampled}")
    steps = {name: output.extra_fields[name] for name in ("min_global_steps", "max_global_steps")}
    if steps != {"min_global_steps": 4, "max_global_steps": 6}:
        problems.append(f"{steps}")
    output, _ = generate(Scripted(list(replies)), resume=False)
    if (output.token_ids, output.stop_reason) != ([7, 8], "abort"):
        problems.append(f"not resumed: {output}")
    account.check("aborted for new weights: resumed as verl does", problems)
    ends(account)


def ends(account: Account) -> None:
    """An abort with the last token is complete; an unknown version makes all versions unknown."""
    client, problems = Scripted([reply([7, 8], "4", "abort")]), []
    # the infinite pause would block if the generation were resumed
    output, _ = generate(client, resume=True, pause=float("inf"), max_tokens=2, max_new_tokens=9)
    if (output.stop_reason, client.asked) != ("length", [(PROMPT, 2)]):
        problems.append(f"{output.stop_reason}, asked {client.asked}")
    output, _ = generate(Scripted([reply([7, 8], "4", "abort")]), resume=False, max_tokens=2)
    if output.stop_reason != "abort":
        problems.append(f"not resumed: {output.stop_reason}")
    account.check("aborted with the last token: finished by length", problems)
    replies, problems = [reply([7], "4", "abort"), reply([8], "default", "stop")], []
    output, sampled = generate(Scripted(replies), resume=True)
    if any(output.extra_fields.values()) or sampled.sources != {"top_k"}:
        problems.append(f"{output.extra_fields}, {sampled.sources}")
    account.check("a version that is not a number: no global steps", problems)


def generate(client: Any, *, resume: bool, pause: float = 0, **limits: int) -> Any:
    """The output and its recorded parts."""
    tap = engine.Engine(Endpoint(client, Policy(None, None)), "s", Budget(8, 16), resume=resume, step=None)
    with patch.object(engine, "PAUSE", pause):
        asked = tap.generate("r", prompt_ids=PROMPT, sampling_params={"logprobs": True, **limits})
        output = asyncio.run(asyncio.wait_for(asked, 10))
    return output, tap.sampled[0]
