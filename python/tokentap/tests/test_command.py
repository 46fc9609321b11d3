# SPDX-License-Identifier: Apache-2.0
"""The command `tokentap-sidecar`, and the environment of another product named `tokentap`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import binary

import tokentap

MAIN = "from tokentap._command import main; main()"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder of installed packages with a copy of this one."""
    source = Path(tokentap.__file__).parent
    shutil.copytree(source, tmp_path / "tokentap", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def python(site: Path, code: str, *arguments: str, found: str | None = None) -> subprocess.CompletedProcess[str]:
    """Runs code with the packages of `site`; `found` is the binary."""
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(site), "TOKENTAP_BIN": found or binary()}
    command = [sys.executable, "-c", code, *arguments]
    # the current folder is the first in which modules are searched
    return subprocess.run(command, cwd=site, env=environment, capture_output=True, text=True, check=False, timeout=60)


def test_the_command_runs_the_binary_with_its_arguments(site: Path) -> None:
    ran = python(site, MAIN, "serve", "--no-such-flag")
    plain = subprocess.run([binary(), "serve", "--no-such-flag"], capture_output=True, text=True, check=False)
    assert "--no-such-flag" in plain.stderr
    assert (ran.stderr, ran.returncode) == (plain.stderr, plain.returncode)


def test_the_command_names_a_missing_binary(site: Path) -> None:
    ran = python(site, MAIN, "--version", found=str(site / "nothing"))
    assert ran.returncode == 1
    assert "tokentap-sidecar: " in ran.stderr
    assert str(site / "nothing") in ran.stderr
    assert "Traceback" not in ran.stderr


def test_another_product_in_the_same_folder_is_named_with_the_remedy(site: Path) -> None:
    assert python(site, "import tokentap").returncode == 0
    (site / "tokentap-0.1.1.dist-info").mkdir()
    ran = python(site, "import tokentap")
    assert ran.returncode == 1
    assert "ImportError: the distribution 'tokentap' 0.1.1" in ran.stderr
    assert "pip uninstall -y tokentap && pip install --force-reinstall tokentap-sidecar" in ran.stderr


def test_the_command_refuses_a_package_that_the_other_product_has_overwritten(site: Path) -> None:
    (site / "tokentap-0.1.1.dist-info").mkdir()
    (site / "tokentap" / "__init__.py").write_text("")
    ran = python(site, MAIN, "--version")
    assert ran.returncode == 1
    assert "tokentap-sidecar: the distribution 'tokentap' 0.1.1" in ran.stderr


def test_this_distribution_is_no_conflict(site: Path) -> None:
    (site / "tokentap_sidecar-0.1.0.dist-info").mkdir()
    (site / "tokentap_sglang-0.1.0.dist-info").mkdir()
    assert python(site, "import tokentap").returncode == 0
