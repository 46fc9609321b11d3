"""EGPO's advantages: GRPO's, raised by the entropy of the thinking, from the tensors of a batch."""

from __future__ import annotations

from typing import Any

import torch

from .problems import NoEntropies

# Qwen3's ids of <think> and </think>.
THINK_START, THINK_END = 151_667, 151_668


def thinking(ids: torch.Tensor, mask: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Which tokens of one sequence were sampled inside a think span, bool [L]; `mask` [L] is 1 where sampled.

    A run is what was sampled with nothing in between. The last marker of the prompt before a run opens or closes its
    first span; markers of earlier turns do not. The markers themselves are outside.
    """
    inside, spans = False, []
    before = 0
    for token, sampled in zip(ids.tolist(), mask.tolist(), strict=True):
        if not sampled and before:
            # a prompt begins anew
            inside = False
        before = sampled
        if token in (start, end):
            inside = token == start
            spans.append(False)
        else:
            spans.append(bool(sampled) and inside)
    return torch.tensor(spans, dtype=torch.bool)


def think_entropy(data: Any, *, think_start: int, think_end: int) -> list[float | None]:
    """The mean of `rollout_entropy` over the thinking of each row, nats, in float64; None where a row has none."""
    batch = data.batch
    if "rollout_entropy" not in batch:
        raise NoEntropies("the batch has no rollout_entropy")
    width = batch["prompts"].shape[1]
    means: list[float | None] = []
    for at in range(len(data)):
        valid = batch["attention_mask"][at].bool()
        mask = torch.cat([torch.zeros(width, dtype=torch.long), batch["response_mask"][at]])[valid]
        nats = torch.cat([torch.zeros(width), batch["rollout_entropy"][at]])[valid]
        inside = thinking(batch["input_ids"][at][valid], mask, think_start, think_end)
        means.append(float(nats[inside].double().mean()) if bool(inside.any()) else None)
    return means


def shape_advantages(
    data: Any, *, lam: float = 0.4, alpha: float = 2.0, think_start: int = THINK_START, think_end: int = THINK_END
) -> Any:
    """Adds `lam * clip(H, -|A| / alpha, |A| / alpha)` to `advantages` [B, R] where `response_mask` is 1.

    `data` is a `verl.DataProto` whose `advantages` are GRPO's, one number A a row; it is changed in place and returned.
    H is the row's `think_entropy`; a row without thinking stays as it is.
    """
    if alpha <= 0:
        raise ValueError(f"alpha is positive, not {alpha}")
    advantages, mask = data.batch["advantages"], data.batch["response_mask"].bool()
    shaped = advantages.clone()
    for at, nats in enumerate(think_entropy(data, think_start=think_start, think_end=think_end)):
        if nats is None:
            continue
        base = advantages[at][mask[at]]
        if bool((base != base[0]).any()):
            raise ValueError(f"row {at} has several advantages; EGPO shapes GRPO's, of which a row has one")
        bound = abs(float(base[0])) / alpha
        shaped[at][mask[at]] = float(base[0]) + lam * max(-bound, min(bound, nats))
    data.batch["advantages"] = shaped
    return data
