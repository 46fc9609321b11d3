# SPDX-License-Identifier: Apache-2.0
"""verl's worker in this process, and the effect of its options on a batch."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import lab
from account import Account
from hydra.errors import InstantiationException
from rows import Truth, as_recorded, as_true, rows, shape
from tokentap import Client
from tokentap.verl import AgentLoopWorker
from tokentap.verl._batch import SOURCE
from tokentap.verl._endpoints import close

LOOP = "tokentap_agent"


def roll(model: Path, loops: Path, **rollout: Any) -> Any:
    """Generates a batch of two samples."""

    async def once() -> Any:
        worker = AgentLoopWorker(lab.config(model, loops, **rollout), None)
        try:
            return await worker.generate_sequences(lab.prompts(["What is two and three?"], 2, LOOP))
        finally:
            await close()

    return asyncio.run(once())


def check(model: Path, loops: Path, client: Client, account: Account, truth: Truth) -> None:
    """Checks greedy sampling, where the engine's logprobs are at temperature 1, and rollouts without logprobs, which tokentap requests."""
    data = roll(model, loops, temperature=0)
    found = rows(data)
    problems = [one for row in found for one in as_recorded(row, client)] + shape(data)
    if found[0].ids != found[1].ids:
        problems.append("two greedy samples differ")
    near, note = as_true(found, truth, 1e-4)
    account.check("greedy: as recorded and near the truth", problems + near, note)
    data = roll(model, loops, calculate_log_probs=False)
    problems = [one for row in rows(data) for one in as_recorded(row, client)] + shape(data)
    if "rollout_log_probs" in data.batch:
        problems.append("the batch has logprobs")
    account.check("without logprobs: as recorded", problems)
    # the top-k covers the whole vocabulary of the demo here
    sources(data, "exact", account)
    try:
        roll(model, loops, **{"disaggregation.enabled": True})
        problems = ["no error"]
    except InstantiationException as error:
        problems = [] if "rollout.disaggregation: " in str(error) else [str(error)]
    account.check("disaggregated prefill and decode: rejected", problems)


def sources(data: Any, want: str, account: Account) -> None:
    """Each row has the source of its entropies."""
    found = data.non_tensor_batch[SOURCE].tolist()
    account.check(f"rows name the source of their entropies: {want}", [str(found)] if set(found) != {want} else [])
