"""What a model answered, with the entropy of the policy at each sampled token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# One number for each sampled token; None for a token without one.
Numbers = list[float | None]


@dataclass(frozen=True)
class Generation:
    """One sampled sequence.

    `output_ids` are those beside the logprobs where there are logprobs: sglang-jax leaves the stop token and special
    tokens out of its own list. `entropy`, `lower` and `upper` are in nats and have one entry for each of `output_ids`;
    they are None as a whole where tokentap was not asked for them, and where they do not fit the ids (`reason` says
    so). `entropy_info` says how they were obtained, and why there are none. `logprobs` are there if `return_logprob`
    was asked. `finish_reason` is its type: `stop`, `length` or `abort`.
    """

    text: str
    output_ids: list[int]
    entropy: Numbers | None
    lower: Numbers | None
    upper: Numbers | None
    entropy_info: dict[str, Any] | None
    logprobs: Numbers | None
    finish_reason: str | None
    # The session that tokentap recorded it in.
    session: str | None
    meta_info: dict[str, Any]
    # The reply, unchanged.
    raw: dict[str, Any]
    # Why numbers of the reply are None here; None where none were dropped.
    reason: str | None = None

    @property
    def rid(self) -> str:
        """The engine's id of the request."""
        return str(self.meta_info["id"])

    @classmethod
    def of(cls, raw: dict[str, Any], headers: Mapping[str, str]) -> Generation:
        """The generation of a reply; KeyError where it is none."""
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
    """Accepts numbers that have one entry for each of `count` ids; drops others, and `reason` says which."""

    def __init__(self, count: int) -> None:
        self._count = count
        self.reason: str | None = None

    def of(self, name: str, numbers: Numbers | None) -> Numbers | None:
        """The numbers, or None where they do not fit."""
        if numbers is None or len(numbers) == self._count:
            return numbers
        message = f"{name}: {len(numbers)} numbers for {self._count} ids"
        self.reason = message if self.reason is None else f"{self.reason}; {message}"
        return None


def sampled(raw: Mapping[str, Any]) -> tuple[list[int], Numbers | None]:
    """The ids that were sampled, and their logprobs where the reply has any."""
    meta = raw["meta_info"]
    rows = meta.get("output_token_logprobs")
    if rows is None:
        return raw["output_ids"], None
    count = meta.get("completion_tokens", len(rows))
    # an engine may send a row more than it counts; other lengths say nothing about which row is whose
    if len(rows) in (count, count + 1) and len(rows) >= len(raw["output_ids"]):
        return [row[1] for row in rows[:count]], [row[0] for row in rows[:count]]
    return raw["output_ids"], [row[0] for row in rows]


def finish_reason(meta: Mapping[str, Any]) -> str | None:
    """The type of the finish reason; None while it runs."""
    reason = meta.get("finish_reason")
    return reason["type"] if isinstance(reason, dict) else reason
