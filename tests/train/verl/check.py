# SPDX-License-Identifier: Apache-2.0
"""check.py METRICS STEPS [--rises] [--egpo] [--rollouts LINES]   prints verl's metrics, and fails if they are wrong.

METRICS is verl's file logger; LINES is that of `verl_older.Manager`, whose columns verl's older trainer lacks.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from checks import MOST_AWAY, MOST_GAP, Checks, table

# float32 of two implementations
MOST_PROBABILITY_GAP = 1e-3
REWARD, EXACT, PROBABILITIES = "critic/score/mean", "actor/entropy", "training/rollout_probs_diff_max"
STALENESS = "training/off_policy/trajectory_staleness_worst"
COLUMNS = {
    "step": "training/global_step",
    "version": "tokentap/version",
    "epoch": "tokentap/epoch",
    "reward": REWARD,
    "tokens": "tokentap/tokens",
    "entropy": "tokentap/entropy",
    "exact": EXACT,
    "error": "tokentap/entropy_error",
    "logprob gap": "tokentap/logprob_gap",
    "probability gap": PROBABILITIES,
    "bonus": "tokentap/bonus",
    "gradient norm": "actor/grad_norm",
    "seconds": "timing_s/step",
}

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("metrics", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument("--rises", action="store_true", help="the reward of the last three steps is above the first three")
parser.add_argument("--egpo", action="store_true", help="the advantages have a bonus, else none")
parser.add_argument("--rollouts", type=Path)
options = parser.parse_args()


def read(path: Path) -> list[dict]:
    """The lines of a file."""
    return [json.loads(line) for line in path.read_text().splitlines()]


lines = [line["data"] for line in read(options.metrics)]
if options.rollouts:
    # a rollout precedes the update of its step
    rollouts = read(options.rollouts)
    lines = [line | rollout for line, rollout in zip(lines, rollouts, strict=True)]
table({name: key for name, key in COLUMNS.items() if key in lines[0]}, lines)
checks = Checks()
check = checks.check


def column(key: str) -> list[float]:
    """A metric of all steps."""
    return [line[key] for line in lines]


steps, epochs, versions = column("training/global_step"), column("tokentap/epoch"), column("tokentap/version")
check("verl made the steps", steps == list(range(1, options.steps + 1)), steps)
if options.rollouts:
    # two: SGLang loads weights, and CheckpointManager posts their step
    check("each update begins an epoch", epochs == sorted(set(epochs)), epochs)
    sampled = [line["steps"] for line in rollouts]
    check("each step samples with the weights of the step before", sampled == [[step - 1] for step in steps], sampled)
else:
    check("each update is one epoch", epochs == list(range(epochs[0], epochs[0] + len(lines))), epochs)
    check("after each step SGLang has its weights", versions == steps, versions)
    late = [line[f"{STALENESS}/{bound}"] for line in lines for bound in ("min", "max")]
    check("verl finds each sample with the weights of the step before", not any(late), f"{max(late)} steps late")
    gaps = column("tokentap/logprob_gap")
    checks.below(f"SGLang's and the actor's logprobs agree within {MOST_GAP}", gaps, MOST_GAP)
    means = [abs(line["tokentap/entropy_exact"] - line[EXACT]) for line in lines]
    checks.below("the exact entropies are those of verl's own metric", means, 1e-5)
    bonus = column("tokentap/bonus")
    has = any(value > 0 for value in bonus) if options.egpo else all(value == 0 for value in bonus)
    check(f"advantages {'with' if options.egpo else 'without'} a bonus", has, f"{max(bonus):.3f}")
gaps = column(PROBABILITIES)
checks.below(f"verl finds probabilities within {MOST_PROBABILITY_GAP}", gaps, MOST_PROBABILITY_GAP)
away = [abs(line["tokentap/entropy"] - line[EXACT]) for line in lines]
checks.below(f"each step's mean entropy is within {MOST_AWAY} nat of the actor's", away, MOST_AWAY)
norms = column("actor/grad_norm")
check("a step trains", max(norms) > 0, f"largest gradient norm {max(norms):.3f}")
if options.rises:
    checks.rises(column(REWARD))
raise SystemExit(checks.failed > 0)
