# SPDX-License-Identifier: Apache-2.0
"""Moves `rollout_entropy` into the batch of verl's older trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ._problems import NoEntropies, Unaligned

ENTROPY = "rollout_entropy"
# One text for each row: `exact`, `top_k` (estimates), both separated by a comma, or `none` without trained tokens.
SOURCE = "tokentap_entropy_source"


def attach(data: Any) -> Any:
    """Moves `rollout_entropy` from `non_tensor_batch` to `batch`: float32 [B, response_length], nats, 0.0 where
    `response_mask` is 0. `data` is a `verl.DataProto`, changed in place and returned.

    Raises NoEntropies for a row without entropies, which another agent loop made.
    """
    rows = data.non_tensor_batch.pop(ENTROPY, None)
    data.batch[ENTROPY] = padded([None] * len(data) if rows is None else list(rows), data.batch["response_mask"])
    return data


def padded(rows: Sequence[Sequence[float] | None], mask: torch.Tensor) -> torch.Tensor:
    """The rows as float32 in the shape of `mask` [B, R]; each row holds the first tokens of its response."""
    entropy = torch.zeros(mask.shape, dtype=torch.float32)
    for at, row in enumerate(rows):
        if row is None:
            raise NoEntropies(f"row {at} of the batch has no entropies")
        if len(row) > mask.shape[1]:
            raise Unaligned(f"row {at}: {len(row)} entropies for a response of at most {mask.shape[1]} tokens")
        entropy[at, : len(row)] = torch.tensor(row, dtype=torch.float32)
    if not bool(torch.isfinite(entropy).all()):
        raise Unaligned("an entropy is not finite")
    if bool((entropy[mask == 0] != 0.0).any()):
        raise Unaligned("a token that is not trained has an entropy")
    return entropy
