# SPDX-License-Identifier: Apache-2.0
"""A generation that new weights abort more than once, and its recorded session."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import patch

import aiohttp
import numpy as np
from account import Account
from engines import Addresses
from tokentap import Client, Generation
from tokentap.verl import _engine as engine
from tokentap.verl._alignment import align
from tokentap.verl._budget import Budget
from tokentap.verl._endpoints import Addresses as Urls
from tokentap.verl._endpoints import shared

PROMPT, LENGTH = [299, 467], 2500
SESSION = "aborted-for-new-weights"
# The number of aborted parts with tokens, and the most attempts.
CUTS, ATTEMPTS = 2, 50


class AbortingClient:
    """A client whose weights change during generations, until enough parts were aborted."""

    def __init__(self, client: Any, control: str) -> None:
        self._client, self._control = client, control
        self.version, self.replies = 0, list[Generation]()

    @property
    def cut(self) -> list[Generation]:
        """The replies that were aborted after a token."""
        return [one for one in self.replies if one.finish_reason == "abort" and one.output_ids]

    async def update(self) -> None:
        """Loads the next weights, which aborts running generations."""
        self.version += 1
        body = {"model_path": "other", "weight_version": str(self.version), "abort_all_requests": True}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self._control}/update_weights_from_disk", json=body) as reply,
        ):
            reply.raise_for_status()

    async def generate(self, **request: Any) -> Generation:
        """Generates as the client does, while updates abort the generation."""
        task = asyncio.create_task(self._client.generate(**request))
        while len(self.cut) < CUTS and len(self.replies) < ATTEMPTS and not task.done():
            # repeatedly, because the first abort may precede the request
            await self.update()
        self.replies.append(await task)
        return self.replies[-1]


def check(at: Addresses, client: Client, account: Account) -> None:
    """The output is complete, and each token has its recorded version, from the first to the last."""
    output, sampled, aborting = asyncio.run(generate(at))
    problems = []
    if len(aborting.cut) < CUTS:
        problems.append(f"only {len(aborting.cut)} aborted parts with tokens, so nothing was checked")
    if len(output.token_ids) != LENGTH or output.stop_reason != "length":
        problems.append(f"{len(output.token_ids)} tokens, {output.stop_reason}")
    whole, paths = PROMPT + output.token_ids, client.trajectories(SESSION)["trajectories"]
    found = [path for path in paths if path["token_ids"] == whole]
    # an attempt aborted before its first token ends a separate path
    if len(found) != 1 or any(path["token_ids"] != whole[: len(path["token_ids"])] for path in paths):
        problems.append(f"{len(found)} of {len(paths)} paths equal the output")
    aligned = align([sampled], PROMPT, output.token_ids, [1] * LENGTH, drop=False)
    for name, ours in (("entropy", aligned.entropy), ("logprobs", output.log_probs)):
        if not all(np.array_equal(np.float32(path[name][len(PROMPT) :]), np.float32(ours)) for path in found):
            problems.append(f"{name} differ")
    steps = [output.extra_fields[f"{end}_global_steps"] for end in ("min", "max")]
    spans = [span for one in aborting.replies if one.output_ids for span in one.meta_info["weight_versions"]]
    versions = [int(span["version"]) for span in spans]
    if steps != [versions[0], versions[-1]] or steps[0] == steps[1]:
        problems.append(f"steps {steps}, versions {versions}")
    note = f"parts of {[len(one.output_ids) for one in aborting.replies]} tokens, versions {versions}"
    account.check("aborted through tokentap: continues as recorded", problems, note)


async def generate(at: Addresses) -> Any:
    """The output, its recorded parts, and the client."""
    endpoint = shared(Urls((at.base,))).all[0]
    aborting = AbortingClient(endpoint.client, at.control)
    await aborting.update()
    with patch.object(endpoint, "client", aborting), patch.object(engine, "PAUSE", 0):
        tap = engine.Engine(endpoint, SESSION, Budget(8, LENGTH), resume=True, step=None)
        output = await tap.generate("r", prompt_ids=PROMPT, sampling_params={"logprobs": True, "ignore_eos": True})
    return output, tap.sampled[0], aborting
