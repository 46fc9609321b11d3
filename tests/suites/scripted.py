# SPDX-License-Identifier: Apache-2.0
"""scripted.py TOKENTAP COMMAND...: runs a command with tokentap in front of the scripted engine of tests/clients.

The demo's model calls a tool only if a grammar forces it to. The scripted model calls the tools that the suites offer.
DATA_URL is the data port. The exit status is that of the command.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "clients"))

from script import rules, tool_call  # noqa: E402
from sidecar import sidecar  # noqa: E402

from engine import Engine, Tokenizer  # noqa: E402

ASSETS = ROOT / "src" / "demo" / "assets"
# words of a user message, and the reply to it; the other replies are a short text
REPLIES = [
    ("What's the weather", tool_call("get_weather", location="San Francisco, CA")),
    ("Compute (3+5)", tool_call("add", a=3, b=5)),
    ("sum 5 and 7", tool_call("add", a=5, b=7)),
]


def main() -> int:
    tokentap, command = sys.argv[1], sys.argv[2:]
    engine = Engine(Tokenizer(ASSETS), rules(REPLIES))
    try:
        with sidecar(tokentap, engine.url, ASSETS) as tap:
            return subprocess.run(command, env=os.environ | {"DATA_URL": tap.data}, check=False).returncode
    finally:
        engine.close()


if __name__ == "__main__":
    raise SystemExit(main())
