# SPDX-License-Identifier: Apache-2.0
"""Figures: what is drawn, and in which Axes."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator

import matplotlib
import pytest
from matplotlib import pyplot
from test_entropies import END, START, path

from tokentap import plot
from tokentap._scale import colour, ramp

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def figures() -> Iterator[None]:
    yield
    pyplot.close("all")


def test_a_new_figure_is_one_column_wide() -> None:
    of = path(([START], [2, 3, END, 4]))
    before = dict(pyplot.rcParams)
    for axes in (plot.curve(of), plot.histogram([of]), plot.split([of], think=(START, END))):
        assert axes.figure.get_size_inches()[0] == plot._COLUMN
        assert axes.xaxis.label.get_size() <= 8
        axes.figure.canvas.draw()
    assert dict(pyplot.rcParams) == before, "the style of the session is unchanged"


def test_given_axes_are_used() -> None:
    of = path(([START], [2, 3, END, 4]))
    _, axes = pyplot.subplots(1, 3)
    assert plot.curve(of, axes[0], label="a", color="#000000") is axes[0]
    assert plot.histogram(of, axes[1]) is axes[1]
    assert plot.split(of, axes[2], think=(START, END)) is axes[2]
    assert axes[0].lines[0].get_label() == "a"
    assert len(pyplot.get_fignums()) == 1


def test_curve_has_gaps_an_interval_and_thinking() -> None:
    of = path(([START], [2, 3, END, 4]), entropy=[None, 0.5, None, 0.25, 1.0])
    of["turns"][0]["extras"] = {
        "output_token_entropy_lower": [0.25, None, 0.25, 0.5],
        "output_token_entropy_upper": [0.75, None, 0.25, 2.0],
    }
    axes = plot.curve(of, think=(START, END))
    (line,) = axes.lines
    assert list(line.get_xdata()) == [1, 2, 3, 4]
    assert list(line.get_ydata()) == pytest.approx([0.5, math.nan, 0.25, 1.0], nan_ok=True)
    (band,) = axes.collections
    assert band.get_datalim(axes.transData).y1 == pytest.approx(2.0)
    (span,) = axes.patches
    assert (span.get_x(), span.get_x() + span.get_width()) == (0.5, 2.5)
    assert axes.get_xlabel() == "sampled token; 3 of 4 measured"
    without = plot.curve(path(([1], [2, 3])))
    assert not without.collections
    assert without.get_xlabel() == "sampled token"


def test_a_long_path_is_drawn_in_bins() -> None:
    axes = plot.curve(path(([1], [2] * 100_000)), bins=300)
    assert len(axes.lines[0].get_xdata()) == 300


def test_histogram_has_the_counts_and_colours_of_the_scale() -> None:
    axes = plot.histogram(
        [path(([1], [2, 3, 4]), entropy=[None, 0.0, 0.0, None]), path(([1], [2]), entropy=[None, 9.0])]
    )
    assert [(round(bar.get_x() + bar.get_width() / 2), bar.get_height()) for bar in axes.patches] == [(0, 2), (23, 1)]
    assert [matplotlib.colors.to_hex(bar.get_facecolor()) for bar in axes.patches] == [ramp()[0], ramp()[23]]
    assert matplotlib.colors.to_hex(axes.patches[0].get_edgecolor()) == colour("bar")
    assert axes.get_xlabel() == "entropy (nats); 3 of 4 measured"
    assert plot.histogram([]).patches == [] or not list(plot.histogram([]).patches)


def test_split_pools_tokens_and_has_a_line_for_each_rollout() -> None:
    first = path(([START], [2, 3, END, 4]), entropy=[None, 1.0, 3.0, 9.0, 0.5])
    second = path(([START], [2, END, 4]), entropy=[None, None, 9.0, 1.5])
    third = path(([1], [2]))
    axes = plot.split([first, second, third], think=(START, END))
    assert [bar.get_height() for bar in axes.patches] == [2.0, 1.0]
    assert len(axes.lines) == 2
    assert list(axes.lines[1].get_ydata()) == pytest.approx([math.nan, 1.5], nan_ok=True)
    assert [label.get_text() for label in axes.get_xticklabels()] == ["thinking\n2 of 3 tokens", "answer\n2 tokens"]
    with pytest.raises(ValueError, match="no path has a think span"):
        plot.split([third], think=(START, END))
    with pytest.raises(ValueError, match="no path has a think span"):
        plot.split([third | {"think_token_count": 0, "think_closed": None}])
    with pytest.raises(ValueError, match="think tokens are not known: give client= or think="):
        plot.split([third])
    with pytest.raises(ValueError, match="client="):
        plot.split([first])


def test_missing_matplotlib_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match="pip install matplotlib"):
        plot.curve(path(([1], [2])))
