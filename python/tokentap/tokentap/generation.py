"""What a model answered, with the entropy of the policy at each sampled token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# One number a sampled token; None where there is none.
Numbers = list[float | None]


@dataclass(frozen=True)
class Generation:
    """One sampled sequence.

    `entropy`, `lower` and `upper` are in nats and have one entry for each of `output_ids`; they are None as a whole
    where tokentap was not asked for them. `entropy_info` says how they were obtained, and why there are none.
    `logprobs` are there if `return_logprob` was asked. `finish_reason` is its type: `stop`, `length` or `abort`.
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
    # The reply as it came.
    raw: dict[str, Any]

    @property
    def rid(self) -> str:
        """The engine's id of the request."""
        return str(self.meta_info["id"])

    @classmethod
    def of(cls, raw: dict[str, Any], headers: Mapping[str, str]) -> Generation:
        """The generation of a reply; KeyError where it is none."""
        meta = raw["meta_info"]
        return cls(
            text=raw.get("text", ""),
            output_ids=raw["output_ids"],
            entropy=meta.get("output_token_entropy"),
            lower=meta.get("output_token_entropy_lower"),
            upper=meta.get("output_token_entropy_upper"),
            entropy_info=meta.get("entropy_info"),
            logprobs=logprobs(meta),
            finish_reason=finish_reason(meta),
            session=headers.get("x-tokentap-session"),
            meta_info=meta,
            raw=raw,
        )


def logprobs(meta: Mapping[str, Any]) -> Numbers | None:
    """The logprob of each sampled token; None where none were asked."""
    rows = meta.get("output_token_logprobs")
    return None if rows is None else [row[0] for row in rows]


def finish_reason(meta: Mapping[str, Any]) -> str | None:
    """The type of the finish reason; None while it runs."""
    reason = meta.get("finish_reason")
    return reason["type"] if isinstance(reason, dict) else reason
