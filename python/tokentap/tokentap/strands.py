"""strands-sglang through tokentap: a client whose calls are one session, and sessions as its rollouts."""

# mypy: allow-subclassing-any

from __future__ import annotations

from array import array
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from strands_sglang import SGLangClient
from strands_sglang.rollout import Rollout

from .client import Client
from .generation import Numbers
from .routes import session_name


class SessionClient(SGLangClient):
    """strands-sglang's client; what it generates is recorded in `session`.

    One for each episode, as each has a model of its own. A base URL with `/sessions/{id}` cannot be given to
    strands-sglang: aiohttp resolves its routes against the host. ValueError where no session can be named so.
    """

    def __init__(self, base_url: str, *, session: str, **options: Any) -> None:
        name = session_name(session)
        super().__init__(base_url, **options)
        self.session = name

    async def generate(self, input_ids: list[int], **fields: Any) -> dict[str, Any]:
        """The engine's reply, with `meta_info.output_token_entropy`.

        The rid is the same in all attempts, so that a reply that was lost is given again and makes no second sample.
        """
        fields = {"rid": uuid4().hex, "_proxy_session_id": self.session, **fields}
        reply: dict[str, Any] = await super().generate(input_ids, **fields)
        return reply


@dataclass(frozen=True)
class Episode:
    """A path of a session: strands-sglang's `Rollout`, and the entropies beside it.

    `entropy` has one entry for each of `rollout.token_ids`, in nats: None where the loss mask is 0, and where tokentap
    has none. `rollout.routed_experts` and `rollout.image_data` stay empty.
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
            logprobs=single([logprob if mask else prompt for mask, logprob, prompt in known]),
            segment_info=[(is_output, length) for is_output, length in sample["segment_info"]],
        )
        about = {name: sample[name] for name in ("session", "version", "leaf", "finish_reason", "reward", "flags")}
        return cls(rollout=rollout, entropy=sample["entropy"], **about)


def single(values: Numbers) -> Numbers:
    """The same float32 numbers, as the doubles that an engine's JSON has; an export prints fewer digits."""
    return [value if value is None else array("f", [value])[0] for value in values]


def episodes(client: Client, session: str, version: int | None = None) -> list[Episode]:
    """Every exported path of a session; sub-agents and structured outputs are paths of their own."""
    samples = client.samples([session], "strands", version=version).json()["samples"]
    return [Episode.of(sample) for sample in samples]


def rollout(client: Client, session: str, version: int | None = None) -> Episode:
    """The path of a session with the most trained tokens; LookupError where none is exported."""
    samples = client.samples([session], "strands", version=version, include_branches=False)
    found = samples.json()["samples"]
    if not found:
        raise LookupError(f"session {session!r} has no path that is exported; refused: {samples.refused}")
    return Episode.of(found[0])
