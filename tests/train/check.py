"""check.py METRICS STEPS [--rises]   prints the metrics of python/examples/train, and fails if they are wrong."""

import argparse
import json
from pathlib import Path

# float32 of two implementations, in nats
MOST_GAP = 1e-3
# the estimate from the top 20 logprobs against the exact entropy, mean of a step in nats a token
MOST_AWAY = 0.1
COLUMNS = ("step", "version", "reward", "right", "tokens", "entropy", "entropy_exact", "entropy_error", "logprob_gap")

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("metrics", type=Path)
parser.add_argument("steps", type=int)
parser.add_argument(
    "--rises", action="store_true", help="the mean reward of the last three steps is above that of the first three"
)
options = parser.parse_args()

lines = [json.loads(line) for line in options.metrics.read_text().splitlines()]
print("| " + " | ".join(COLUMNS) + " |")
print("|---" * len(COLUMNS) + "|")
for line in lines:
    print("| " + " | ".join(f"{line[column]:.4g}" for column in COLUMNS) + " |")

failed = 0


def check(name: str, passed: bool, value: object) -> None:
    """Prints a check and counts it if it failed."""
    global failed
    failed += not passed
    print(f"{'ok' if passed else 'FAIL'} {name}: {value}")


def within(values: list[float], limit: float) -> bool:
    """Whether all are below the limit; NaN is not."""
    return all(value < limit for value in values)


def mean(column: str, part: list[dict]) -> float:
    """The mean of a column."""
    return sum(line[column] for line in part) / len(part)


steps = [line["step"] for line in lines]
check("each step has one line", steps == list(range(options.steps)), f"{len(steps)} lines")
versions = [line["version"] for line in lines]
check("each step samples with the weights of the step before", versions == steps, versions)
gaps = [line["logprob_gap"] for line in lines]
check(f"SGLang's and the trainer's logprobs agree within {MOST_GAP}", within(gaps, MOST_GAP), f"{max(gaps):.1e}")
away = [abs(line["entropy"] - line["entropy_exact"]) for line in lines]
check(f"each step's mean entropy is within {MOST_AWAY} nat of the exact one", within(away, MOST_AWAY), f"{max(away):.4f}")
if options.rises:
    first, last = mean("reward", lines[:3]), mean("reward", lines[-3:])
    check("the reward rises", last > first, f"{first:.3f} to {last:.3f}")
raise SystemExit(failed > 0)
