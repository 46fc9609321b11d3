# SPDX-License-Identifier: Apache-2.0
"""Draws reward and entropy by step from the metrics of train.py. Needs matplotlib.

curves.py OUT.png NAME=metrics.jsonl...   runs with the same name have one colour; their mean is the thick line
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

COLOURS = pyplot.rcParams["axes.prop_cycle"].by_key()["color"]


def main(out: str, *runs: str) -> None:
    """Draws the means of each name, its runs if there are several, and the mean of the exact entropies dashed."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained", dpi=150)
    named: dict[str, list[list[dict]]] = {}
    for run in runs:
        name, path = run.split("=", 1)
        named.setdefault(name, []).append([json.loads(line) for line in Path(path).read_text().splitlines()])
    for (name, lines), colour in zip(named.items(), itertools.cycle(COLOURS), strict=False):
        for axes, column in ((left, "reward"), (right, "entropy")):
            axes.plot(mean(lines, column), color=colour, label=name)
            for run in lines if len(lines) > 1 else []:
                axes.plot([line[column] for line in run], color=colour, linewidth=0.7, alpha=0.4)
        right.plot(mean(lines, "entropy_exact"), color="black", linewidth=0.9, linestyle="--")
    right.plot([], [], color="black", linewidth=0.9, linestyle="--", label="exact")
    left.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.02))
    right.set(xlabel="step", ylabel="mean entropy, nats a token", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(out)


def mean(runs: list[list[dict]], column: str) -> list[float]:
    """The mean over runs at each step that all of them have."""
    return [sum(line[column] for line in step) / len(step) for step in zip(*runs, strict=False)]


if __name__ == "__main__":
    main(*sys.argv[1:])
