# SPDX-License-Identifier: Apache-2.0
"""EGPO of a verl batch in three ways: tokentap's reply, tokentap.verl's function, and NumPy over the batch's tensors."""

from __future__ import annotations

from typing import Any

import egpo_reference
import numpy as np
import torch
import verl_egpo
from rows import Row, rows
from tokentap import Client
from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

LAMBDA, ALPHA = 0.4, 2.0


def steps(row: Row) -> list[dict[str, Any]]:
    """The row as turns: tokens not sampled, then sampled tokens."""
    turns: list[dict[str, Any]] = [{"prompt": list(row.prompt), "response": [], "entropy": []}]
    for token, bit, nats in zip(row.response, row.mask, row.entropy.tolist(), strict=True):
        if not bit and turns[-1]["response"]:
            turns.append({"prompt": [], "response": [], "entropy": []})
        turns[-1]["response" if bit else "prompt"].append(token)
        if bit:
            turns[-1]["entropy"].append(nats)
    return turns


def by_numpy(row: Row, grpo: float, think: tuple[int, int]) -> tuple[float, float | None]:
    """The advantage of the row, and the entropy of its thinking."""
    nats, _, _ = egpo_reference.think(steps(row), *think)
    bound = abs(grpo) / ALPHA
    return grpo if nats is None else grpo + LAMBDA * float(np.clip(nats, -bound, bound)), nats


def compare(data: Any, client: Client, think: tuple[int, int]) -> tuple[list[str], str]:
    """Differences between the three, and the number of rows with entropy."""
    found, uid = rows(data), data.non_tensor_batch["uid"]
    # any rewards work if groups differ and some rows are below their mean
    rewards = [float(len(row.response) % 7) / 4 + at % 2 for at, row in enumerate(found)]
    scores = torch.zeros_like(data.batch["responses"], dtype=torch.float32)
    for at, (row, reward) in enumerate(zip(found, rewards, strict=True)):
        scores[at, len(row.response) - 1] = reward
    data.batch["token_level_rewards"] = scores
    grpo_alone, _ = compute_grpo_outcome_advantage(scores, data.batch["response_mask"], uid)
    verl_egpo.advantages(data, lam=LAMBDA, alpha=ALPHA, think_start=think[0], think_end=think[1])

    groups: dict[str, list[dict[str, object]]] = {}
    for row, group, reward in zip(found, uid, rewards, strict=True):
        groups.setdefault(str(group), []).append({"session": row.session, "reward": reward})
    asked = [{"id": group, "samples": samples} for group, samples in groups.items()]
    options = {"lambda": LAMBDA, "alpha": ALPHA, "think_start": think[0], "think_end": think[1]}
    answer = client.advantages(asked, "egpo", **options)
    theirs = {sample["session"]: sample for group in answer["groups"] for sample in group["samples"]}

    problems, thought, raised, cut = [], 0, 0, 0
    for at, row in enumerate(found):
        theirs_row = theirs[row.session]
        grpo = float(grpo_alone[at][data.batch["response_mask"][at].bool()][0])
        want, nats = by_numpy(row, grpo, think)
        mask = np.array(row.mask, float)
        ours = data.batch["advantages"][at][: len(mask)].numpy()
        thought += nats is not None
        raised += want != grpo
        if not np.allclose(ours, want * mask, rtol=1e-6, atol=1e-7):
            problems.append(f"row {at}: tokentap.verl has other advantages than NumPy")
        if len(theirs_row["advantages"]) > len(row.ids):
            # verl truncated this response; tokentap's H is over all sampled tokens
            cut += 1
            continue
        if (nats is None) != (theirs_row["H"] is None) or (nats is not None and abs(nats - theirs_row["H"]) > 1e-6):
            problems.append(f"row {at}: H {nats} and {theirs_row['H']}")
        if not np.allclose(grpo, theirs_row["grpo_advantage"], rtol=1e-5, atol=1e-6):
            problems.append(f"row {at}: GRPO {grpo} and {theirs_row['grpo_advantage']}")
        if not np.allclose(want, theirs_row["advantage"], rtol=1e-5, atol=1e-6):
            problems.append(f"row {at}: {want} and {theirs_row['advantage']}")
        broadcast = np.array(theirs_row["advantages"])[len(row.prompt) : len(row.ids)]
        if not np.allclose(broadcast, ours, rtol=1e-5, atol=1e-6):
            problems.append(f"row {at}: tokentap's numbers a token differ")
    if not raised or cut == len(found):
        problems.append("no row was shaped, so nothing was compared")
    return problems, f"{len(found)} rows, {thought} with thinking, {raised} shaped, {cut} cut by verl"
