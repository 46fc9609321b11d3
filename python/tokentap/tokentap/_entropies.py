# SPDX-License-Identifier: Apache-2.0
"""The entropies of a path's sampled tokens: measured values, intervals, thinking, bins and means.

A number that is None, not finite or negative is not measured. It is NaN here and no mean counts it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any, cast

from . import _routes as routes
from ._client import Client
from ._errors import HttpError
from ._scale import STEPS, step

Path = Mapping[str, Any]
"""A path, as in `client.trajectories(session)["trajectories"]`."""

ThinkIds = tuple[int, int]
"""The ids of the tokens that open and close thinking."""

ANSWER, THINK, MARK = 0, 1, 2
"""The part of a sampled token: answer, thinking, or a think token itself."""

# The faults after which the entropies still belong to the tokens.
_RELIABLE = (None, "aborted", "disconnected", "broken", "forwarded")


@dataclass(frozen=True)
class Entropies:
    """One entry for each sampled token of a path, in nats; NaN is not measured."""

    # The positions of the sampled tokens in the path.
    positions: list[int]
    nats: list[float]
    # The interval that contains the entropy; NaN if the request did not ask for `bounds`.
    lower: list[float]
    upper: list[float]
    # ANSWER, THINK or MARK; None if the think ids are not known.
    parts: list[int] | None
    # Whether a think span exists; None if the think ids are not known.
    thinks: bool | None

    @classmethod
    def of(cls, path: Path, think: ThinkIds | None = None, seen: set[object] | None = None) -> Entropies:
        """The entropies of a path, without turns that are in `seen`, to which its turns are added.

        Raises ValueError if it is not a path, or if its lists differ in length.
        """
        check(path)
        count = len(path["token_ids"])
        nats = _column(path, "entropy", count)
        intervals = {name: _column(path, name, count) for name in ("lower", "upper")}
        turns = {turn["id"]: turn for turn in path.get("turns") or ()}
        positions: list[int] = []
        for segment in path["segments"]:
            if segment["kind"] != "response":
                continue
            turn_key = (path.get("session"), path.get("version"), segment["turn"])
            if seen is not None and path.get("session") is not None:
                if turn_key in seen:
                    continue
                seen.add(turn_key)
            start, end = segment["start"], segment["end"]
            positions.extend(range(start, end))
            turn = turns.get(segment["turn"], {})
            if turn.get("fault") not in _RELIABLE:
                nats[start:end] = [math.nan] * (end - start)
            for name, column in intervals.items():
                # the list of trajectories has intervals in the extras of a turn, replies in ranges have columns
                own = (turn.get("extras") or {}).get(f"output_token_entropy_{name}")
                if path.get(name) is None and isinstance(own, list) and len(own) == end - start:
                    column[start:end] = [measured(value) for value in own]
        parts, thinks = (None, None) if think is None else _parts(path, think)
        return cls(
            positions,
            [nats[at] for at in positions],
            [intervals["lower"][at] for at in positions],
            [intervals["upper"][at] for at in positions],
            None if parts is None else [parts[at] for at in positions],
            thinks,
        )

    @property
    def total(self) -> Mean:
        """The mean over all sampled tokens."""
        return Mean.of(self.nats)

    @property
    def has_interval(self) -> bool:
        """Whether any token has both bounds."""
        return any(low <= high for low, high in zip(self.lower, self.upper, strict=True))

    def split(self) -> Split | None:
        """The means of thinking and answer; None without a think span, or if the think ids are not known."""
        if self.parts is None or not self.thinks:
            return None
        of = {
            part: [x for x, own in zip(self.nats, self.parts, strict=True) if own == part] for part in (THINK, ANSWER)
        }
        return Split(Mean.of(of[THINK]), Mean.of(of[ANSWER]))

    def bins(self, most: int) -> list[Bin]:
        """At most `most` bins of neighbouring tokens, of equal size."""
        count = len(self.nats)
        bars = min(most, count)
        return [self._bin(at * count // bars, (at + 1) * count // bars) for at in range(bars)]

    def _bin(self, start: int, end: int) -> Bin:
        nats = self.nats[start:end]
        inside = zip(self.lower[start:end], self.upper[start:end], nats, strict=True)
        both = [(low, high) for low, high, own in inside if low <= high and own >= 0]
        thinking = self.parts is not None and THINK in self.parts[start:end]
        return Bin(
            start,
            end,
            Mean.of(nats).value,
            max((x for x in nats if x >= 0), default=None),
            Mean.of([low for low, _ in both]).value,
            Mean.of([high for _, high in both]).value,
            thinking,
        )


@dataclass(frozen=True)
class Mean:
    """A mean over the measured tokens. `value` is None without such a token."""

    value: float | None
    measured: int
    tokens: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """The mean of the values that are not NaN, in float64."""
        known = [value for value in values if value == value]
        return cls(math.fsum(known) / len(known) if known else None, len(known), len(values))

    @classmethod
    def pooled(cls, means: Iterable[Mean]) -> Mean:
        """The mean over the tokens of several means."""
        found = list(means)
        count = sum(one.measured for one in found)
        total = math.fsum(one.value * one.measured for one in found if one.value is not None)
        return cls(total / count if count else None, count, sum(one.tokens for one in found))


@dataclass(frozen=True)
class Split:
    """The mean entropies of the thinking and of all other sampled tokens, without the think tokens themselves."""

    think: Mean
    answer: Mean

    @classmethod
    def pooled(cls, batch: Iterable[Entropies]) -> Split:
        """The means over the tokens of all paths that have a think span."""
        splits = [found for entropies in batch if (found := entropies.split()) is not None]
        return cls(Mean.pooled(one.think for one in splits), Mean.pooled(one.answer for one in splits))


@dataclass(frozen=True)
class Bin:
    """Neighbouring sampled tokens, `start` to `end`, with the means and the maximum of those that are measured."""

    start: int
    end: int
    mean: float | None
    most: float | None
    lower: float | None
    upper: float | None
    thinks: bool


@dataclass(frozen=True)
class Histogram:
    """The number of tokens of each step of the scale, over a batch of paths."""

    counts: list[int]
    paths: int
    total: Mean

    @classmethod
    def of(cls, paths: Path | Iterable[Path]) -> Histogram:
        """Counts the measured tokens of a path or of several, those of a turn that several paths share once."""
        return cls.over(each_turn_once(several(paths)))

    @classmethod
    def over(cls, batch: Iterable[Entropies]) -> Histogram:
        """Counts the measured tokens of a batch."""
        counts, means = [0] * STEPS, []
        for entropies in batch:
            means.append(entropies.total)
            for value in entropies.nats:
                if value >= 0:
                    counts[step(value)] += 1
        return cls(counts, len(means), Mean.pooled(means))


def measured(value: object) -> float:
    """A number, or NaN if it is not measured: None, not finite, negative, or not a number."""
    # NumPy's scalars are registered as Real
    if isinstance(value, Real):
        number = float(value)
        return number if 0 <= number < math.inf else math.nan
    return math.nan


def each_turn_once(paths: Iterable[Path], think: ThinkIds | None = None) -> list[Entropies]:
    """The entropies of the paths of a batch. A turn that several paths of a session share is in the first one only."""
    seen: set[object] = set()
    return [Entropies.of(path, think, seen) for path in paths]


def several(paths: Path | Iterable[Path]) -> list[Path]:
    """A list of one path or of several, also of those in a reply of `Client.trajectories`."""
    if isinstance(paths, Mapping):
        one = cast("Mapping[str, Any]", paths)
        return list(one["trajectories"]) if "trajectories" in one else [one]
    return list(paths) if isinstance(paths, Iterable) else [paths]


def check(path: object) -> None:
    """Raises ValueError for what is not a path."""
    if isinstance(path, Mapping) and "token_ids" in path:
        return
    what = type(path).__name__
    if isinstance(path, Mapping):
        what = f"an object with {', '.join(map(str, path))[:60]}"
    raise ValueError(f"{what} is not a path: give one of client.trajectories(session)['trajectories']")


def has_no_thinking(path: Path) -> bool:
    """Whether tokentap knew the think tokens and found no span; then the ids are not needed."""
    return path.get("think_token_count") == 0 and path.get("think_closed") is None


def think_ids(
    paths: Sequence[Path], client: Client | None = None, think: ThinkIds | Mapping[str, int] | None = None
) -> ThinkIds | None:
    """The ids of the think tokens: `think`, those that a path names, or those that tokentap uses. None if unknown.

    Raises ValueError if one is not a path.
    """
    for path in paths:
        check(path)
    named = [think, *(path.get("think") for path in paths)]
    for ids in named:
        if isinstance(ids, Mapping):
            return ids["start"], ids["end"]
        if ids is not None:
            start, end = ids
            return start, end
    for path in paths if client is not None else ():
        if client is not None and not has_no_thinking(path):
            try:
                head = client._send(routes.path(path["session"], path["leaf"], path.get("version")))
            except HttpError as error:
                if error.status not in (404, 410):
                    raise
                continue  # this session was deleted or evicted
            return None if head["think"] is None else (head["think"]["start"], head["think"]["end"])
    return None


def _column(path: Path, name: str, count: int) -> list[float]:
    values = path.get(name)
    if values is None:
        return [math.nan] * count
    if len(values) != count:
        raise ValueError(f"{name}: {len(values)} numbers for {count} tokens")
    return [measured(value) for value in values]


def _parts(path: Path, think: ThinkIds) -> tuple[list[int], bool]:
    """The part of each token, and whether a span exists, by the rules of tokentap's `think_entropy_mean`."""
    start = think[0]
    ids = path["token_ids"]
    parts, inside, found = [ANSWER] * len(ids), False, False
    for segment in path["segments"]:
        own = range(segment["start"], segment["end"])
        if segment["kind"] != "response":
            if own:
                # the template may have written the start token; the last think token decides
                last = next((ids[at] for at in reversed(own) if ids[at] in think), None)
                inside = last == start
            continue
        for at in own:
            # a span that a prompt began exists once a token is sampled
            found = found or inside or ids[at] == start
            if ids[at] in think:
                inside, parts[at] = ids[at] == start, MARK
            elif inside:
                parts[at] = THINK
    return parts, found
