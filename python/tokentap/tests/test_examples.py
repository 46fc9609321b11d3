"""Runs the examples that need only this package."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

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


def test_the_sums_of_the_training_loop_are_repeatable_and_verified() -> None:
    folder = str(ROOT / "python" / "examples" / "train")
    sys.path.insert(0, folder)
    try:
        from sums import sums, verify
    finally:
        sys.path.remove(folder)
    made = sums(50, "0-0")
    assert made == sums(50, "0-0") != sums(50, "0-1")
    assert len({task.prompt for task in made}) == 50
    for task in made:
        a, sign, b, _ = task.prompt.splitlines()[1].split()
        assert task.answer == (int(a) + int(b) if sign == "+" else int(a) - int(b)) > 0
        rewards = {" {}": 1.0, " {} .": 0.5, " 7 or {}": 0.5, " {}1": 0.0, " {} or 99": 0.0, "": 0.0, " none": 0.0}
        assert [verify(text.format(task.answer), task.answer) for text in rewards] == list(rewards.values())


def test_the_rollout_example_uses_the_ports_of_the_demo() -> None:
    sys.path.insert(0, str(Path(ROLLOUTS).parent))
    try:
        from rollouts import main
    finally:
        sys.path.pop(0)
    given = AsyncClient.__init__.__defaults__
    assert main.__defaults__ == given == ("http://127.0.0.1:30001", "http://127.0.0.1:30002")
