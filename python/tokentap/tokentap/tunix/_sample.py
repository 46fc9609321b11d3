# SPDX-License-Identifier: Apache-2.0
"""A sampled sequence as arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._generation import Generation, Numbers

Ids = NDArray[np.int32]
Floats = NDArray[np.float32]


class SampleUnusable(RuntimeError):
    """A reply that cannot be trained on; the message says why."""


class EntropyMissing(SampleUnusable):
    """Required entropies are missing."""


@dataclass(frozen=True, eq=False)
class Sample:
    """A sampled sequence of T tokens, with the stop token if one was sampled.

    `logprobs` are those of the policy at the temperature of the request, in nats. `entropy` is in nats, NaN at a token
    without one; None if tokentap measured nothing, and `reason` says why.
    """

    prompt: Ids  # [P], not padded
    text: str
    tokens: Ids  # [T]
    logprobs: Floats  # [T]
    entropy: Floats | None  # [T]
    reason: str | None
    # The session in which tokentap recorded it.
    session: str
    finish_reason: str
    # The engine's name of the weights at the last token; None if the engine does not report one.
    weight_version: str | None

    @classmethod
    def of(cls, generation: Generation, prompt: Ids, session: str) -> Sample:
        """Parses a reply with logprobs; raises SampleUnusable if it cannot be trained on."""
        meta = generation.meta_info
        count = int(meta.get("completion_tokens", 0))
        if generation.finish_reason not in ("stop", "length"):
            raise SampleUnusable(f"session {session}: ended by {meta.get('finish_reason')} after {count} tokens")
        # The ids of the logprobs are the sampled ones; `output_ids` of sglang-jax lack special tokens. An engine
        # may send one row more than it counts.
        rows: list[Any] = (meta.get("output_token_logprobs") or [])[:count]
        if len(rows) != count or any(row[0] is None for row in rows):
            raise SampleUnusable(f"session {session}: {count} tokens without a logprob for each of them")
        if generation.reason is not None:
            raise SampleUnusable(f"session {session}: {generation.reason}")
        info = generation.entropy_info or {}
        return cls(
            prompt=prompt,
            text=generation.text,
            tokens=np.array([row[1] for row in rows], dtype=np.int32),
            logprobs=np.array([row[0] for row in rows], dtype=np.float32),
            entropy=entropy(generation.entropy),
            reason=info.get("reason"),
            session=generation.session or session,
            finish_reason=generation.finish_reason,
            weight_version=meta.get("weight_version"),
        )

    def with_entropy(self) -> Sample:
        """Returns itself; raises EntropyMissing if a token has no entropy."""
        if self.entropy is None:
            why = self.reason or "tokentap returned neither entropies nor a reason; see its --entropy"
            raise EntropyMissing(f"session {self.session}: no entropy: {why}")
        if missing := int(np.isnan(self.entropy).sum()):
            why = self.reason or "tokentap gave no reason"
            raise EntropyMissing(f"session {self.session}: no entropy at {missing} of {len(self.tokens)} tokens: {why}")
        return self


def entropy(numbers: Numbers | None) -> Floats | None:
    """The numbers, NaN for None; None if all are None."""
    if numbers is None or (numbers and all(number is None for number in numbers)):
        return None
    return np.array([np.nan if number is None else number for number in numbers], dtype=np.float32)
