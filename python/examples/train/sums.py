# SPDX-License-Identifier: Apache-2.0
"""Word problems with one sum each, in the manner of GSM8K, and their verifier: a task without a data set."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix")
THINGS = ("apples", "books", "cards", "coins", "marbles", "pens")
STORIES = (
    ("{name} has {a} {things} and buys {b} more.", "+"),
    ("{name} has {a} {things} and finds {b} more.", "+"),
    ("{name} has {a} {things} and gives away {b} of them.", "-"),
)


@dataclass(frozen=True)
class Sum:
    """A story with the sum in figures, and the number that the model should write after it."""

    prompt: str
    answer: int


def sums(count: int, seed: int | str) -> list[Sum]:
    """`count` different sums of numbers from 1 to 20; equal seeds give equal sums."""
    rng = random.Random(seed)
    made: dict[str, Sum] = {}
    while len(made) < count:
        story, sign = rng.choice(STORIES)
        b, other = rng.randint(1, 10), rng.randint(1, 10)
        a, answer = (other, other + b) if sign == "+" else (other + b, other)
        text = story.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=b)
        prompt = f"{text}\n{a} {sign} {b} ="
        made[prompt] = Sum(prompt, answer)
    return list(made.values())


def verify(text: str, answer: int) -> float:
    """The reward: 1 for the right number alone, 0.5 for the right number at the end of other words, otherwise 0."""
    numbers = re.findall(r"\d+", text)
    if not numbers or int(numbers[-1]) != answer:
        return 0.0
    return 1.0 if text.strip() == numbers[-1] else 0.5
