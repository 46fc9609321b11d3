"""Draws reward and entropy by step from the metrics of train.py. Needs matplotlib.

curves.py OUT.png NAME=metrics.jsonl...
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot


def main(out: str, *runs: str) -> None:
    """One line for each run; the exact entropy is dashed."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(7.2, 2.8), layout="constrained", dpi=150)
    for run in runs:
        name, path = run.split("=", 1)
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        steps = [line["step"] for line in lines]
        (drawn,) = left.plot(steps, [line["reward"] for line in lines], label=name)
        right.plot(steps, [line["entropy"] for line in lines], color=drawn.get_color(), label=f"{name}, tokentap")
        exact = [line["entropy_exact"] for line in lines]
        right.plot(steps, exact, color="black", linewidth=0.9, linestyle="--", label=f"{name}, exact")
    left.set(xlabel="step", ylabel="mean reward", ylim=(0, 1.02))
    right.set(xlabel="step", ylabel="mean entropy, nats a token", ylim=(0, None))
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(out)


if __name__ == "__main__":
    main(*sys.argv[1:])
