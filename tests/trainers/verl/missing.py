"""What becomes of trained tokens without entropy: a tokentap that computes none, and verl's worker in this process."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import engines
import lab
from account import Account
from tokentap.verl import AgentLoopWorker
from tokentap.verl.endpoints import close
from tokentap.verl.problems import MissingEntropy


def check(binary: str, model: Path, work: Path, account: Account) -> None:
    """The rollout fails and says why; with `missing_entropy: mask` its tokens are counted, and not trained."""
    with engines.demo(binary, "--entropy", "off") as at:
        try:
            roll(model, lab.loops(work / "raise.yaml", at.base, None), "tokentap_agent")
            problems = ["a batch came"]
        except MissingEntropy as error:
            problems = [] if "computes none" in str(error) else [str(error)]
        account.check("missing entropies: refused", problems)
        data = roll(model, lab.loops(work / "mask.yaml", at.base, None, missing_entropy="mask"), "tokentap_agent")
        lengths = data.batch["attention_mask"][:, lab.PROMPT :].sum(1).tolist()
        counted = data.non_tensor_batch["tokentap_missing_entropy"].tolist()
        left = int(data.batch["response_mask"].sum()) + int((data.batch["rollout_entropy"] != 0).sum())
        problems = [] if counted == lengths and not left else [f"{counted} of {lengths} tokens, {left} left"]
        account.check("missing entropies: masked", problems, f"{sum(counted)} tokens")


def roll(model: Path, loops: Path, loop: str) -> Any:
    """A batch of two."""

    async def once() -> Any:
        worker = AgentLoopWorker(lab.config(model, loops), None)
        try:
            return await worker.generate_sequences(lab.prompts(["What is two and three?"], 2, loop))
        finally:
            await close()

    return asyncio.run(once())
