# SPDX-License-Identifier: Apache-2.0
"""Figures of entropies for papers, one column wide. They need matplotlib, which the extra `notebook` adds.

Each function draws into `ax`, or into a new figure, and returns the Axes. Tokens that are not measured are left out.
The label of an axis then says how many are measured.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ._client import Client
from ._entropies import (
    THINK,
    Entropies,
    Histogram,
    Mean,
    Path,
    Split,
    ThinkIds,
    each_turn_once,
    has_no_thinking,
    several,
    think_ids,
)
from ._scale import MOST, STEPS, colour, ramp, step

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["curve", "histogram", "split"]

_COLUMN = 3.3
"""The width of a new figure in inches: one column of a two-column page."""

_DPI = 150
"""The resolution of a new figure, in dots per inch."""

_STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

_THINK = ThinkIds | Mapping[str, int] | None


def curve(
    path: Path,
    ax: Axes | None = None,
    *,
    client: Client | None = None,
    think: _THINK = None,
    bins: int = 400,
    label: str | None = None,
    color: str | None = None,
) -> Axes:
    """The entropy along the sampled tokens of a path, as means of at most `bins` bins.

    The band is the interval that contains the entropy, if the request asked for `bounds`. The thinking is shaded if its
    tokens are known: from `think`, from the path, or with a `client` from tokentap.
    """
    axes: Axes = _axes(ax, 1.9)
    entropies = Entropies.of(path, think_ids([path], client, think))
    found = entropies.bins(bins)
    own = color or colour("bar")
    x = [(one.start + one.end + 1) / 2 for one in found]
    axes.plot(x, _numbers(one.mean for one in found), color=own, linewidth=0.7, label=label, zorder=3)
    if entropies.has_interval:
        lower, upper = _numbers(one.lower for one in found), _numbers(one.upper for one in found)
        axes.fill_between(x, lower, upper, color=own, alpha=0.3, linewidth=0, zorder=2)
    for start, end in _thoughts(entropies):
        axes.axvspan(start + 0.5, end + 0.5, color=colour("accent"), alpha=0.12, linewidth=0, zorder=0)
    axes.set_xlim(0.5, max(1, len(entropies.nats)) + 0.5)
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"sampled token{_missing(entropies.total)}")
    axes.set_ylabel("entropy (nats)")
    return axes


def histogram(paths: Path | Iterable[Path], ax: Axes | None = None) -> Axes:
    """The entropies of all sampled tokens of a batch of rollouts, in the steps and colours of tokentap's page.

    A turn of several paths counts once.
    """
    axes: Axes = _axes(ax, 1.9)
    found = Histogram.of(paths)
    levels = [level for level in range(STEPS) if found.counts[level]]
    counts = [found.counts[level] for level in levels]
    colours = [ramp()[level] for level in levels]
    axes.bar(levels, counts, width=0.9, color=colours, edgecolor=colour("bar"), linewidth=0.4)
    if counts:
        # a few tokens with a high entropy stay visible beside thousands without
        axes.set_yscale("log")
        axes.set_ylim(0.7, max(counts) * 1.5)
    axes.set_xlim(-0.8, STEPS - 0.2)
    ticks = (0.0, 0.1, 0.5, 1.0, 2.0, float(MOST))
    axes.set_xticks([(value / MOST) ** 0.5 * (STEPS - 1) for value in ticks])
    axes.set_xticklabels([*(f"{value:g}" for value in ticks[:-1]), f"{MOST}+"])
    axes.set_xlabel(f"entropy (nats){_missing(found.total)}")
    axes.set_ylabel("tokens")
    return axes


def split(
    paths: Path | Iterable[Path], ax: Axes | None = None, *, client: Client | None = None, think: _THINK = None
) -> Axes:
    """The mean entropy of thinking and of the answer: a bar over all tokens, and a line for each of several rollouts.

    Raises ValueError if no path has a think span, or if the think tokens are not known.
    """
    batch = several(paths)
    ids = think_ids(batch, client, think)
    splits = [found for path in batch if (found := Entropies.of(path, ids).split()) is not None]
    if not splits:
        if ids is not None or all(has_no_thinking(path) for path in batch):
            raise ValueError("no path has a think span")
        raise ValueError(
            f"the ids of the think tokens are not known: give {'client= or ' if client is None else ''}think="
        )
    both = Split.pooled(each_turn_once(batch, ids))
    axes: Axes = _axes(ax, 2.1)
    for x, mean in enumerate((both.think, both.answer)):
        if mean.value is not None:
            own = ramp()[step(mean.value)]
            axes.bar(x, mean.value, width=0.6, color=own, edgecolor=colour("bar"), linewidth=0.6, zorder=1)
    for one in splits if len(splits) > 1 else ():
        ends = _numbers((one.think.value, one.answer.value))
        axes.plot((0, 1), ends, color=colour("accent"), alpha=0.6, linewidth=0.6, marker="o", markersize=2, zorder=2)
    axes.set_xticks((0, 1))
    names = [f"{name}\n{_count(mean)}" for name, mean in (("thinking", both.think), ("answer", both.answer))]
    axes.set_xticklabels(names)
    axes.set_xlim(-0.6, 1.6)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("mean entropy (nats)")
    return axes


def _axes(ax: Axes | None, height: float) -> Any:
    if ax is not None:
        return ax
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError("figures need matplotlib: pip install matplotlib") from error
    # the first figure loads the backend, which sets parameters that the context would reset
    figure = pyplot.figure(figsize=(_COLUMN, height), dpi=_DPI, layout="constrained")
    with pyplot.rc_context(_STYLE):
        return figure.subplots()


def _numbers(values: Iterable[float | None]) -> list[float]:
    """NaN for an absent number, which matplotlib leaves out."""
    return [float("nan") if value is None else value for value in values]


def _count(mean: Mean) -> str:
    return f"{mean.tokens:,} tokens" if mean.measured == mean.tokens else f"{mean.measured:,} of {mean.tokens:,} tokens"


def _missing(mean: Mean) -> str:
    return "" if mean.measured == mean.tokens else f"; {mean.measured:,} of {mean.tokens:,} measured"


def _thoughts(entropies: Entropies) -> Iterable[tuple[int, int]]:
    """The ranges of thinking among the sampled tokens."""
    begin: int | None = None
    parts = [*(entropies.parts or ()), None]
    for at, part in enumerate(parts):
        if part == THINK and begin is None:
            begin = at
        elif part != THINK and begin is not None:
            yield begin, at
            begin = None
