# SPDX-License-Identifier: Apache-2.0
"""Assigns entropies to the tokens of a response."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ._problems import MissingEntropy, Unaligned


@dataclass(frozen=True)
class Sampled:
    """One generation: the ids of its prompt, the sampled ids, and an entropy in nats for each sampled id.

    None is an unknown entropy, and `reason` is tokentap's reason. `sources` are tokentap's sources of the others,
    `exact` or `top_k`; a generation of several requests can have both.
    """

    prompt_ids: Sequence[int]
    token_ids: Sequence[int]
    entropy: Sequence[float | None]
    reason: str | None = None
    sources: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if len(self.token_ids) != len(self.entropy):
            raise Unaligned(f"{len(self.entropy)} entropies for {len(self.token_ids)} tokens")


@dataclass(frozen=True)
class Aligned:
    """A response: `entropy` (nats) and `mask` have one entry for each token; `missing` counts tokens removed from the
    mask.

    `sources` are those of the generations whose tokens are in the mask.
    """

    entropy: list[float]
    mask: list[int]
    missing: int
    sources: frozenset[str]


def align(
    sampled: Iterable[Sampled],
    prompt_ids: Sequence[int],
    response_ids: Sequence[int],
    mask: Sequence[int],
    *,
    drop: bool,
) -> Aligned:
    """The entropies of a response whose trained tokens (`mask` 1) come from `sampled`; 0.0 where the mask is 0.

    A generation matches the response if its prompt is a prefix of the row's ids, prompt and response. It explains the
    tokens from the end of that prefix to the first token that it did not sample. (verl truncates responses, and removes
    or replaces the last tokens of a turn, but does not insert tokens into a turn.) If several generations explain a
    token, because a prompt was sampled twice, the one that explains the most following tokens is used.

    Raises Unaligned for a trained token that no generation explains. For a trained token without entropy it raises
    MissingEntropy; with `drop` it sets the mask to 0 and counts the token.
    """
    if len(mask) != len(response_ids):
        raise Unaligned(f"a mask of {len(mask)} for a response of {len(response_ids)} tokens")
    whole = [*prompt_ids, *response_ids]
    explained: dict[int, tuple[Sampled, int]] = {}
    for one, end in sorted(_ends(sampled, whole), key=lambda pair: -pair[1]):
        begin = len(one.prompt_ids)
        for place in range(begin, end):
            explained.setdefault(place, (one, place - begin))
    entropy, kept, missing, sources = [0.0] * len(mask), list(mask), 0, frozenset[str]()
    for at in (at for at, bit in enumerate(mask) if bit):
        if len(prompt_ids) + at not in explained:
            raise Unaligned(f"token {at} of the response (id {response_ids[at]}) was not sampled at this place")
        one, of_it = explained[len(prompt_ids) + at]
        nats = one.entropy[of_it]
        if nats is None:
            if not drop:
                why = one.reason or "no reason was given"
                raise MissingEntropy(f"token {at} of the response has no entropy: {why}")
            kept[at] = 0
            missing += 1
        else:
            entropy[at] = nats
            sources |= one.sources
    return Aligned(entropy, kept, missing, sources)


def _ends(sampled: Iterable[Sampled], whole: Sequence[int]) -> Iterator[tuple[Sampled, int]]:
    """The generations whose prompt is a prefix of `whole`, each with the position where it differs from `whole`."""
    for one in sampled:
        end = len(one.prompt_ids)
        if list(one.prompt_ids) != whole[:end]:
            continue
        for token in one.token_ids:
            if end == len(whole) or whole[end] != token:
                break
            end += 1
        yield one, end
