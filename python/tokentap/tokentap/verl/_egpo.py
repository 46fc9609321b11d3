# SPDX-License-Identifier: Apache-2.0
"""EGPO's advantages: GRPO's plus a bonus for the entropy of the thinking, for a batch or for a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ._batch import ENTROPY
from ._problems import NoEntropies, Unaligned

# Qwen3's ids of <think> and </think>.
THINK_START, THINK_END = 151_667, 151_668


def thinking(ids: torch.Tensor, mask: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Which tokens of one sequence were sampled inside a think span, bool [L]; `mask` [L] is 1 where sampled.

    A run is a sequence of sampled tokens without a gap. The last think token of the prompt before a run decides whether
    the run begins inside a span; think tokens of earlier turns do not count. Think tokens are not part of the span.
    """
    inside, spans = False, []
    before = 0
    for token, sampled in zip(ids.tolist(), mask.tolist(), strict=True):
        if not sampled and before:
            # a new prompt begins
            inside = False
        before = sampled
        if token in (start, end):
            inside = token == start
            spans.append(False)
        else:
            spans.append(bool(sampled) and inside)
    return torch.tensor(spans, dtype=torch.bool)


@dataclass(frozen=True)
class EgpoRow:
    """One row without padding: the ids of its prompt [P] and response [R], the mask and the entropies of the response.

    `mask` [R] is 1 for sampled tokens; `entropy` [R] is in nats and is used for those only.
    """

    prompt: torch.Tensor
    response: torch.Tensor
    mask: torch.Tensor
    entropy: torch.Tensor

    def __post_init__(self) -> None:
        if not len(self.response) == len(self.mask) == len(self.entropy):
            raise Unaligned(f"{len(self.response)} tokens, a mask of {len(self.mask)}, {len(self.entropy)} entropies")

    def think_entropy(self, start: int, end: int) -> float | None:
        """The mean entropy of the thinking in nats, float64; None without thinking tokens."""
        ids = torch.cat([self.prompt, self.response])
        mask = torch.cat([torch.zeros_like(self.prompt), self.mask.to(self.prompt.dtype)])
        inside = thinking(ids, mask, start, end)[len(self.prompt) :]
        return float(self.entropy[inside].double().mean()) if bool(inside.any()) else None


def shape_row(
    row: EgpoRow,
    advantages: torch.Tensor,
    trained: torch.Tensor,
    *,
    lam: float = 0.4,
    alpha: float = 2.0,
    think_start: int = THINK_START,
    think_end: int = THINK_END,
) -> torch.Tensor:
    """`advantages` [R] plus `lam * clip(H, -|A| / alpha, |A| / alpha)` where `trained` [R] is 1.

    A is the single advantage of the row, H the entropy of its thinking. Without thinking or trained tokens,
    `advantages` are returned unchanged. `trained` is `row.mask`, possibly without rejected tokens.
    """
    if alpha <= 0:
        raise ValueError(f"alpha must be positive, not {alpha}")
    places = trained.bool()
    base, nats = advantages[places], row.think_entropy(think_start, think_end)
    if nats is None or not len(base):
        return advantages
    if not bool(torch.isfinite(base).all()):
        raise ValueError("an advantage is not finite")
    if bool((base != base[0]).any()):
        raise ValueError("several advantages in a row; EGPO needs GRPO's, which has one for each row")
    bound = abs(float(base[0])) / alpha
    shaped = advantages.clone()
    shaped[places] = float(base[0]) + lam * max(-bound, min(bound, nats))
    return shaped


def shape_advantages(data: Any, **options: Any) -> Any:
    """Applies `shape_row` to each row of a `verl.DataProto` with `advantages` [B, R]; changes and returns `data`.

    `options` are those of `shape_row`. A ValueError names the row.
    """
    batch = data.batch
    if ENTROPY not in batch:
        raise NoEntropies("the batch has no rollout_entropy")
    width, shaped = batch["prompts"].shape[1], batch["advantages"].clone()
    for at, valid in enumerate(batch["attention_mask"].bool()):
        prompt, response = valid[:width], valid[width:]
        mask = batch["response_mask"][at][response]
        row = EgpoRow(
            batch["prompts"][at][prompt], batch["responses"][at][response], mask, batch[ENTROPY][at][response]
        )
        try:
            shaped[at][response] = shape_row(row, shaped[at][response], mask, **options)
        except ValueError as error:
            raise ValueError(f"row {at}: {error}") from error
    batch["advantages"] = shaped
    return data
