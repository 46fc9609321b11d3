# SPDX-License-Identifier: Apache-2.0
"""An adapter for strands-sglang: a client that names its session, and sessions as rollouts."""

# mypy: allow-subclassing-any

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from strands_sglang import SGLangClient
from strands_sglang.rollout import Rollout

from ._brief import Brief
from ._client import Client
from ._generation import Numbers
from ._routes import session_name

__all__ = ["Episode", "SessionClient", "episodes", "rollout"]


class SessionClient(SGLangClient):
    """strands-sglang's client; its generations are recorded in `session`.

    Each episode has its own client and model. strands-sglang does not work with a base URL that ends in
    `/sessions/{id}`, because aiohttp resolves its routes against the host. Raises ValueError for an invalid name.
    """

    def __init__(self, base_url: str, *, session: str, **options: Any) -> None:
        name = session_name(session)
        super().__init__(base_url, **options)
        self.session = name

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        """The engine's reply, with `meta_info.output_token_entropy`.

        All attempts have the same rid, so that a retry gets a lost reply again instead of a second sample.
        """
        fields = {"rid": uuid4().hex, "_proxy_session_id": self.session, **fields}
        reply: dict[str, Any] = await super().generate(input_ids, **fields)
        return reply


@dataclass(frozen=True, repr=False)
class Episode(Brief):
    """A path of a session: strands-sglang's `Rollout` and its entropies.

    `entropy` has one entry for each of `rollout.token_ids`, in nats: None where the loss mask is 0 and for a
    token without entropy. `rollout.routed_experts` has one piece for each turn, or none;
    `rollout.image_data` stays empty.
    """

    rollout: Rollout
    entropy: Numbers
    session: str
    version: int
    leaf: int
    finish_reason: str | None
    reward: Any
    flags: list[str]

    @classmethod
    def of(cls, sample: dict[str, Any]) -> Episode:
        """The episode of a sample in the format `strands`."""
        prompts = sample["prompt_logprobs"] or [None] * len(sample["token_ids"])
        known = zip(sample["loss_mask"], sample["logprobs"], prompts, strict=True)
        rollout = Rollout(
            token_ids=sample["token_ids"],
            loss_mask=sample["loss_mask"],
            logprobs=_single([logprob if mask else prompt for mask, logprob, prompt in known]),
            segment_info=[(is_output, length) for is_output, length in sample["segment_info"]],
            routed_experts=sample.get("routed_experts") or [],
        )
        about = {name: sample[name] for name in ("session", "version", "leaf", "finish_reason", "reward", "flags")}
        return cls(rollout=rollout, entropy=sample["entropy"], **about)


def _single(values: Numbers) -> Numbers:
    """Rounds to float32, as in the engine's JSON; an export prints fewer digits."""
    return [value if value is None else array("f", [value])[0] for value in values]


def episodes(client: Client, session: str, version: int | None = None) -> list[Episode]:
    """Every exported path of a session; sub-agents and structured outputs are separate paths."""
    samples = client._for_trainers().samples([session], "strands", version=version).json()["samples"]
    return [Episode.of(sample) for sample in samples]


def rollout(client: Client, session: str, version: int | None = None) -> Episode:
    """The path of a session with the most trained tokens; raises LookupError if no path is exported."""
    samples = client._for_trainers().samples([session], "strands", version=version, include_branches=False)
    found = samples.json()["samples"]
    if not found:
        raise LookupError(f"session {session!r} has no exported path; refused: {samples.refused}")
    return Episode.of(found[0])
