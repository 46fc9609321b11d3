"""Which entropy belongs to which token of a response."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .problems import MissingEntropy, Unaligned


@dataclass(frozen=True)
class Sampled:
    """One generation: the ids it began with, the ids that were sampled, and an entropy in nats for each of these.

    None stands for an entropy that is not known; `reason` is tokentap's word for why.
    """

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    entropy: Sequence[float | None]
    reason: str | None = None

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.entropy):
            raise Unaligned(f"{len(self.entropy)} entropies for {len(self.token_ids)} tokens")


@dataclass(frozen=True)
class Aligned:
    """A response: `entropy` (nats) and `mask` have one entry a token; `missing` counts what left the mask."""

    entropy: list[float]
    mask: list[int]
    missing: int


def align(
    sampled: Iterable[Sampled],
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    mask: Sequence[int],
    *,
    drop: bool,
) -> Aligned:
    """The entropies of a response whose trained tokens (`mask` 1) come from `sampled`; 0.0 where the mask is 0.

    A generation belongs to the response if the response, cut where the generation began, is what it began with. verl
    may cut the response at its end, and may replace the last token of a turn by one of the next; both leave trained
    tokens that are a beginning of what was sampled. So each token is compared.

    Raises Unaligned for a trained token that no generation explains. One without entropy raises MissingEntropy, or with
    `drop` gets mask 0 and is counted.
    """
    if len(mask) != len(response_ids):
        raise Unaligned(f"a mask of {len(mask)} for a response of {len(response_ids)} tokens")
    whole = [*prompt_ids, *response_ids]
    trained = [len(prompt_ids) + at for at, bit in enumerate(mask) if bit]
    found: dict[int, tuple[float | None, str | None]] = {}
    for one in sampled:
        begin = len(one.prompt_ids)
        if list(one.prompt_ids) != whole[:begin]:
            continue
        places = (place for place in trained if place >= begin)
        for place, token, nats in zip(places, one.token_ids, one.entropy, strict=False):
            if whole[place] != token:
                break
            found[place] = (nats, one.reason)
    entropy, kept, missing = [0.0] * len(mask), list(mask), 0
    for place in trained:
        at = place - len(prompt_ids)
        if place not in found:
            raise Unaligned(f"token {at} of the response (id {response_ids[at]}) was not sampled there")
        nats, reason = found[place]
        if nats is None:
            if not drop:
                raise MissingEntropy(f"token {at} of the response has no entropy: {reason or 'no reason was given'}")
            kept[at] = 0
            missing += 1
        else:
            entropy[at] = nats
    return Aligned(entropy, kept, missing)
