# SPDX-License-Identifier: Apache-2.0
"""check.py METRICS STEPS [--rises]   prints the metrics of python/examples/train, and fails if they are wrong."""

import argparse
import json
from pathlib import Path

from checks import MOST_AWAY, MOST_GAP, Checks, table

COLUMNS = ("step", "version", "reward", "right", "tokens", "entropy", "entropy_exact", "entropy_error", "logprob_gap")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("metrics", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument(
    "--rises", action="store_true", help="the mean reward of the last three steps is above that of the first three"
)
options = parser.parse_args()

lines = [json.loads(line) for line in options.metrics.read_text().splitlines()]
table({column: column for column in COLUMNS}, lines)

checks = Checks()
steps, versions = [line["step"] for line in lines], [line["version"] for line in lines]
checks.check("each step has one line", steps == list(range(options.steps)), f"{len(steps)} lines")
checks.check("each step samples with the weights of the step before", versions == steps, versions)
gaps = [line["logprob_gap"] for line in lines]
checks.below(f"SGLang's and the trainer's logprobs agree within {MOST_GAP}", gaps, MOST_GAP)
away = [abs(line["entropy"] - line["entropy_exact"]) for line in lines]
checks.below(f"each step's mean entropy is within {MOST_AWAY} nat of the exact one", away, MOST_AWAY)
if options.rises:
    checks.rises([line["reward"] for line in lines])
raise SystemExit(checks.failed > 0)
