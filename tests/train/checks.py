# SPDX-License-Identifier: Apache-2.0
"""The limits and checks that check.py and verl/check.py share."""

from __future__ import annotations

# float32 of two implementations, in nats
MOST_GAP = 1e-3
# the estimate from the top 20 logprobs against the exact entropy, mean of a step in nats a token
MOST_AWAY = 0.1


class Checks:
    """Prints checks and counts those that failed."""

    def __init__(self) -> None:
        self.failed = 0

    def check(self, name: str, passed: bool, value: object) -> None:
        """One check."""
        self.failed += not passed
        print(f"{'ok' if passed else 'FAIL'} {name}: {value}")

    def below(self, name: str, values: list[float], limit: float) -> None:
        """All values are below the limit; NaN is not."""
        self.check(name, all(value < limit for value in values), f"{max(values):.1e}")

    def rises(self, rewards: list[float]) -> None:
        """The mean of the last three steps is above that of the first three."""
        first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
        self.check("the reward rises", last > first, f"{first:.3f} to {last:.3f}")


def table(columns: dict[str, str], lines: list[dict]) -> None:
    """Prints a row for each line; `columns` has the key of each heading."""
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for line in lines:
        print("| " + " | ".join(f"{line[key]:.4g}" for key in columns.values()) + " |")
