"""Word problems with one sum each, in the manner of GSM8K, and their verifier: a task without a data set."""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

NAMES = ("Anna", "Ben", "Carla", "David", "Emma", "Felix")
THINGS = ("apples", "books", "cards", "coins", "marbles", "pens")
STORIES = (
    ("{name} has {a} {things} and buys {b} more. How many {things} does {name} have now?", 1),
    ("{name} has {a} {things} and finds {b} more. How many {things} does {name} have in total?", 1),
    ("{name} has {a} {things} and gives away {b} of them. How many {things} are left?", -1),
)


@dataclass(frozen=True)
class Sum:
    """A question and the number that answers it."""

    question: str
    answer: int

    @property
    def prompt(self) -> str:
        """The text that the model continues."""
        return f"Question: {self.question}\nAnswer:"


def sums(count: int, seed: int | str) -> list[Sum]:
    """`count` different sums with results from 1 to 20; equal seeds give equal sums."""
    rng = random.Random(seed)
    made: dict[str, Sum] = {}
    while len(made) < count:
        story, sign = rng.choice(STORIES)
        small, part = rng.randint(1, 10), rng.randint(1, 10)
        a, answer = (small, small + part) if sign > 0 else (small + part, small)
        question = story.format(name=rng.choice(NAMES), things=rng.choice(THINGS), a=a, b=part)
        made[question] = Sum(question, answer)
    return list(made.values())


def verify(text: str, answer: int) -> float:
    """The reward: 1 for the right number alone, 0.5 for the right number at the end of other words, otherwise 0."""
    numbers = re.findall(r"\d+", text)
    if not numbers or int(numbers[-1]) != answer:
        return 0.0
    return 1.0 if text.strip() == numbers[-1] else 0.5
