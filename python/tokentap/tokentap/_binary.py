# SPDX-License-Identifier: Apache-2.0
"""Finds the tokentap binary."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

from ._errors import BinaryNotFound

NAME = "tokentap" + (sysconfig.get_config_var("EXE") or "")

# What `tokentap --version` prints.
VERSION = re.compile(r"tokentap (\d+\.\d+\.\d+\S*)\s*")

# Seconds that `--version` may take.
VERSION_TIMEOUT = 30.0


def find(binary: str | os.PathLike[str] | None = None) -> Path:
    """The path of the tokentap binary.

    It is the first that exists of: `binary`, the environment variable TOKENTAP_BIN, `tokentap` in the folder of scripts
    of this interpreter, in that of the user scheme, and on PATH. A path that is given must exist: no other place is
    searched then. Raises `BinaryNotFound` if there is none, or if it is another program: `--version` must print
    `tokentap X.Y.Z`.
    """
    path, origin = _locate(binary)
    check(path, origin)
    return path


def check(path: Path, origin: str) -> str:
    """The version of a binary; raises `BinaryNotFound` if it is another program."""
    try:
        made = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=VERSION_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BinaryNotFound(f"{path} ({origin}) cannot be run: {error}") from error
    output = made.stdout.decode(errors="replace")
    version = VERSION.fullmatch(output)
    if made.returncode != 0 or version is None:
        raise BinaryNotFound(
            f"{path} ({origin}) is not the tokentap for SGLang, but another program with this name: its --version "
            f"printed {output.strip()[:200]!r} with exit code {made.returncode}, not 'tokentap X.Y.Z'"
        )
    return version[1]


def _locate(binary: str | os.PathLike[str] | None) -> tuple[Path, str]:
    """The first binary that exists, and its origin for messages."""
    for named, origin in ((binary, "the argument binary="), (os.environ.get("TOKENTAP_BIN"), "TOKENTAP_BIN")):
        if named:
            path = Path(named).expanduser()
            if not _is_executable(path):
                raise BinaryNotFound(f"{path} ({origin}) is not an executable file")
            return path.absolute(), origin
    searched = ["the argument binary= and TOKENTAP_BIN, which are not set"]
    for folder, origin in _scripts():
        if _is_executable(folder / NAME):
            return folder / NAME, origin
        searched.append(f"{folder} ({origin})")
    on_path = shutil.which("tokentap")
    if on_path is not None:
        return Path(on_path).absolute(), "PATH"
    searched.append(f"PATH ({os.environ.get('PATH', '')})")
    raise BinaryNotFound("no tokentap binary was found in: " + "; ".join(searched))


def _scripts() -> list[tuple[Path, str]]:
    """The folders in which pip installs commands."""
    user = sysconfig.get_preferred_scheme("user")
    return [
        (Path(sysconfig.get_path("scripts")), "scripts of this interpreter"),
        (Path(sysconfig.get_path("scripts", user)), "scripts of the user scheme"),
    ]


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)
