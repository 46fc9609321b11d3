# SPDX-License-Identifier: Apache-2.0
"""Products that a small model cannot compute, a calculator that it can call, and the reward of an episode."""

from __future__ import annotations

import random
import re
from operator import add, mul, sub

from sums import Sum, verify

SYSTEM = "Compute with the tool."
# shown before each question: a question, a call, and the answer after its result
EXAMPLE = ("What is 31 * 12?", "31 * 12", "372")
# then an episode ends without an answer
MOST_CALLS = 2
SIGNS = {"+": add, "-": sub, "*": mul}


def products(count: int, seed: int | str) -> list[Sum]:
    """`count` different questions; equal seeds give equal questions."""
    rng = random.Random(seed)
    pairs: dict[tuple[int, int], None] = {}
    while len(pairs) < count:
        pairs[rng.randint(11, 99), rng.randint(11, 99)] = None
    return [Sum(f"What is {a} * {b}?", a * b) for a, b in pairs]


def calculator(expression: str) -> str:
    """The result of two numbers and a sign, or what is wrong."""
    found = re.fullmatch(r"\s*(\d{1,9})\s*([-+*])\s*(\d{1,9})\s*", expression)
    if not found:
        return "error: write two numbers with +, - or * between them"
    a, sign, b = found.groups()
    return str(SIGNS[sign](int(a), int(b)))


def reward(text: str, results: list[str], answer: int) -> float:
    """1 for the right number alone, 0.5 for it at the end of other words, 0.3 for only a right call, otherwise 0."""
    return verify(text, answer) or 0.3 * (str(answer) in results)
