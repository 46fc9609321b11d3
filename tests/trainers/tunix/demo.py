# SPDX-License-Identifier: Apache-2.0
"""tokentap with its embedded engine, as a separate process."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tokentap import Client

REPOSITORY = Path(__file__).resolve().parents[3]
TOKENIZER = REPOSITORY / "src" / "demo" / "assets"
BINARY = os.environ.get("TOKENTAP_BIN", str(REPOSITORY / "target" / "debug" / "tokentap"))


@contextmanager
def demo(*flags: str) -> Iterator[Client]:
    """A client of a fresh demo on free ports."""
    command = [BINARY, "demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "error", *flags]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            data, control = addresses(process)
            with Client(data, control, retries=5, pause=0.2) as client:
                yield client
        finally:
            process.terminate()


def addresses(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Both base URLs, from the requests that the demo prints once it answers."""
    data = None
    for line in process.stdout or ():
        data = data or first(r"(http://[\d.:]+)/generate", line)
        control = first(r"Metrics: (http://[\d.:]+)/metrics", line)
        if data and control:
            return data, control
    raise RuntimeError(f"{BINARY} ended before it answered")


def first(pattern: str, line: str) -> str | None:
    """The group of the first match."""
    found = re.search(pattern, line)
    return found[1] if found else None
