# SPDX-License-Identifier: Apache-2.0
"""Runs the examples of docs/install.md and docs/api/python.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ROOT, binary

EXAMPLES = [
    example
    for page in ("docs/install.md", "docs/api/python.md")
    for example in re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.M | re.S)
]


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_runs(number: int, tmp_path: Path) -> None:
    file = tmp_path / "test_example.py"
    file.write_text(EXAMPLES[number])
    is_test = "\ndef test_" in "\n" + EXAMPLES[number]
    arguments = ["-m", "pytest", "-q", "-p", "tokentap.pytest_plugin", "--rootdir", str(tmp_path)] if is_test else []
    env = {
        **os.environ,
        "TOKENTAP_BIN": binary(),
        "PYTHONPATH": str(ROOT / "python" / "tokentap"),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    command = [sys.executable, *arguments, str(file)]
    made = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert made.returncode == 0, made.stdout + made.stderr
    assert made.stdout.strip(), "the example prints something"
