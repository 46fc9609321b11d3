# SPDX-License-Identifier: Apache-2.0
"""A generation, with the entropy of the policy at each sampled token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ._brief import Brief

# One number for each sampled token; None for a token without one.
Numbers = list[float | None]


@dataclass(frozen=True, repr=False)
class Generation(Brief):
    """One sampled sequence.

    `output_ids` are the ids of the logprobs if the reply has logprobs, because the list of sglang-jax omits the stop
    token and special tokens. `entropy`, `lower` and `upper` are in nats and have one entry for each of `output_ids`.
    Each is None if it was not requested, or if its length is not that of the ids (then `reason` says so).
    `entropy_info` says how they were obtained, or why they are missing. `logprobs`, in nats, are those of the sampled
    ids; they exist if `return_logprob` was set.
    `finish_reason` is `stop`, `length` or `abort`.
    """

    text: str
    output_ids: list[int]
    entropy: Numbers | None
    lower: Numbers | None
    upper: Numbers | None
    entropy_info: dict[str, Any] | None
    logprobs: Numbers | None
    finish_reason: str | None
    # The session in which tokentap recorded it.
    session: str | None
    meta_info: dict[str, Any] = field(repr=False)
    # The reply, unchanged.
    raw: dict[str, Any] = field(repr=False)
    # Why numbers of the reply are None here; None if none were dropped.
    reason: str | None = None

    @property
    def rid(self) -> str:
        """The engine's id of the request."""
        return str(self.meta_info["id"])

    @classmethod
    def of(cls, raw: dict[str, Any], headers: Mapping[str, str]) -> Generation:
        """Parses a reply; raises KeyError if it is not a generation."""
        meta = raw["meta_info"]
        ids, rows = sampled(raw)
        fitting = Aligned(len(ids))
        return cls(
            text=raw.get("text", ""),
            output_ids=ids,
            entropy=fitting.of("entropy", meta.get("output_token_entropy")),
            lower=fitting.of("lower", meta.get("output_token_entropy_lower")),
            upper=fitting.of("upper", meta.get("output_token_entropy_upper")),
            entropy_info=meta.get("entropy_info"),
            logprobs=fitting.of("logprobs", rows),
            finish_reason=finish_reason(meta),
            session=headers.get("x-tokentap-session"),
            meta_info=meta,
            raw=raw,
            reason=fitting.reason,
        )


class Aligned:
    """Accepts lists with one entry for each of `count` ids; drops others and names them in `reason`."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.reason: str | None = None

    def of(self, name: str, numbers: Numbers | None) -> Numbers | None:
        """The numbers, or None if their count is wrong."""
        if numbers is None or len(numbers) == self._count:
            return numbers
        message = f"{name}: {len(numbers)} numbers for {self._count} ids"
        self.reason = message if self.reason is None else f"{self.reason}; {message}"
        return None


def sampled(raw: Mapping[str, Any]) -> tuple[list[int], Numbers | None]:
    """The sampled ids, and their logprobs if the reply has them."""
    meta = raw["meta_info"]
    rows = meta.get("output_token_logprobs")
    if rows is None:
        return raw["output_ids"], None
    count = meta.get("completion_tokens", len(rows))
    # an engine may send one row more than it counts; with any other length the rows cannot be assigned to tokens
    if len(rows) in (count, count + 1) and len(rows) >= len(raw["output_ids"]):
        return [row[1] for row in rows[:count]], [row[0] for row in rows[:count]]
    return raw["output_ids"], [row[0] for row in rows]


def finish_reason(meta: Mapping[str, Any]) -> str | None:
    """The type of the finish reason; None while the generation runs."""
    reason = meta.get("finish_reason")
    return reason["type"] if isinstance(reason, dict) else reason
