# SPDX-License-Identifier: Apache-2.0
"""Trained tokens without entropy, from a tokentap that computes none or only estimates."""

from __future__ import annotations

from pathlib import Path

import engines
import lab
from account import Account
from tokentap.verl._problems import MissingEntropy
from worker import roll, sources


def check(binary: str, model: Path, work: Path, account: Account) -> None:
    """The rollout fails with the reason; with `missing_entropy: mask` its tokens are counted and not trained."""
    with engines.demo(binary, "--entropy", "off") as at:
        try:
            roll(model, lab.loops(work / "raise.yaml", at.base, None))
            problems = ["no error"]
        except MissingEntropy as error:
            problems = [] if "computes none" in str(error) else [str(error)]
        account.check("missing entropies: rejected", problems)
        data = roll(model, lab.loops(work / "mask.yaml", at.base, None, missing_entropy="mask"))
        lengths = data.batch["attention_mask"][:, lab.PROMPT :].sum(1).tolist()
        counted = data.non_tensor_batch["tokentap_missing_entropy"].tolist()
        left = int(data.batch["response_mask"].sum()) + int((data.batch["rollout_entropy"] != 0).sum())
        problems = [] if counted == lengths and not left else [f"{counted} of {lengths} tokens, {left} left"]
        account.check("missing entropies: masked", problems, f"{sum(counted)} tokens")
        sources(data, "none", account)
    with engines.demo(binary) as at:
        sources(roll(model, lab.loops(work / "few.yaml", at.base, None)), "top_k", account)
