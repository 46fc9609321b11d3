# SPDX-License-Identifier: Apache-2.0
"""Runs the examples that need only this package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, Demo, running

from tokentap import AsyncClient

ROLLOUTS = ROOT / "python" / "examples" / "rollouts.py"


def rollouts(where: Demo) -> str:
    """The output of the example."""
    command = [sys.executable, str(ROLLOUTS), where.data, where.control]
    made = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert made.returncode == 0, made.stderr
    return made.stdout


def test_the_rollout_example_prints_entropies(demo: Demo) -> None:
    printed = rollouts(demo)
    assert len(re.findall(r"^[+-]\d\.\d{3}  \d\.\d{3} nats a token  ", printed, re.M)) == 4
    assert re.search(r"'rollout_entropy': \(4, \d+\)", printed), printed


def test_the_rollout_example_works_without_entropies() -> None:
    with running("--entropy", "off") as demo:
        assert rollouts(demo).count("  no entropy  ") == 4


@pytest.fixture
def training_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """The modules of the training loop can be imported."""
    monkeypatch.syspath_prepend(str(ROOT / "python" / "examples" / "train"))


@pytest.mark.usefixtures("training_loop")
def test_the_sums_of_the_training_loop_are_repeatable_and_verified() -> None:
    from sums import sums, verify

    made = sums(50, "0-0")
    assert made == sums(50, "0-0") != sums(50, "0-1")
    assert len({task.prompt for task in made}) == 50
    for task in made:
        a, sign, b, _ = task.prompt.splitlines()[1].split()
        assert task.answer == (int(a) + int(b) if sign == "+" else int(a) - int(b)) > 0
        rewards = {" {}": 1.0, " {} .": 0.5, " 7 or {}": 0.5, " {}1": 0.0, " {} or 99": 0.0, "": 0.0, " none": 0.0}
        assert [verify(text.format(task.answer), task.answer) for text in rewards] == list(rewards.values())


@pytest.mark.usefixtures("training_loop")
def test_the_products_of_the_agent_are_repeatable_and_rewarded() -> None:
    from calculator import EXAMPLE, calculator, products, reward

    made = products(50, "0-0")
    assert made == products(50, "0-0") != products(50, "0-1")
    assert len({task.prompt for task in made}) == 50
    for task in made:
        assert calculator(task.prompt.removeprefix("What is ").removesuffix("?")) == str(task.answer)
        right, wrong = str(task.answer), ["error", "7"]
        texts = {right: 1.0, f"It is {right}": 0.5, "": 0.3, f"{right} or 7": 0.3}
        assert [reward(text, [*wrong, right], task.answer) for text in texts] == list(texts.values())
        assert reward("", wrong, task.answer) == reward("7", [], task.answer) == 0.0
    question, expression, result = EXAMPLE
    assert expression in question
    assert calculator(expression) == result
    assert calculator("3 - 10") == "-7"
    for wrong in ("", "3", "3 ** 4", "3 * 4 * 5", "__import__('os')", "1" * 10 + " * 2", "3 / 4"):
        assert calculator(wrong).startswith("error: ")


def test_the_rollout_example_uses_the_ports_of_the_demo() -> None:
    sys.path.insert(0, str(Path(ROLLOUTS).parent))
    try:
        from rollouts import main
    finally:
        sys.path.pop(0)
    given = AsyncClient.__init__.__defaults__
    assert main.__defaults__ == given == ("http://127.0.0.1:30001", "http://127.0.0.1:30002")
