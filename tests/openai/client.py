# SPDX-License-Identifier: Apache-2.0
"""The official openai SDK with tokentap, and checks of the results.

Prints a line per check; exit status 1 if one fails.
"""

from __future__ import annotations

import argparse
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import conversation
import failures
import openai
import replies
from tap import Tap, watched
from ways import WAYS

ASSETS = Path(__file__).resolve().parents[2] / "src" / "demo" / "assets"


def twenty(tap: Tap, name: str) -> None:
    """Twenty turns in one session are one row, which equals the client's replies and the engine's requests and replies bit by bit."""
    session = "twenty-" + "".join(filter(str.isalnum, name))
    since = len(tap.engine.of("/generate")) if tap.engine else 0
    with tap.delivery(session) as to:
        received = conversation.converse(to, WAYS[name])
    prompts, outputs = conversation.line(tap, session)
    with_ids = conversation.same_as_replies(received, prompts, outputs)
    assert with_ids == (0 if "stream" in name else conversation.TURNS), f"{with_ids} replies had ids"
    if tap.engine:
        conversation.same_as_engine(tap, since, prompts, outputs)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("data", "control", "token", "engine", "tokentap", "work"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    failed = 0

    def check(name: str, run: Callable[[], None]) -> None:
        nonlocal failed
        begun = time.monotonic()
        try:
            run()
        except Exception as error:
            failed += 1
            place = traceback.extract_tb(error.__traceback__)[-1]
            print(
                f"FAIL {name}: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})", flush=True
            )
        else:
            print(f"ok   {name} ({time.monotonic() - begun:.1f} s)", flush=True)

    print(f"openai {openai.__version__}")
    # the SDK expects strings in `metadata`, where SGLang's replies have a list
    warnings.filterwarnings("ignore", "(?s)Pydantic serializer warnings.*metadata")
    demo = Tap(args.data, args.control, args.token)
    for name in ("create", "create(stream=True)", "stream()"):
        check(f"demo: twenty turns by {name}", partial(twenty, demo, name))
    flags = [
        "--tokenizer",
        str(ASSETS),
        "--separate-reasoning",
        "always",
        "--agent-token",
        "agent",
        "--control-token",
        args.token,
    ]
    with watched(args.tokentap, args.engine, f"{args.work}/watched", *flags) as tap:
        tap.token, tap.key = args.token, "agent"
        for name in WAYS:
            check(f"watched: twenty turns by {name}", partial(twenty, tap, name))
        for one in [*replies.CHECKS, *failures.CHECKS, failures.wrong_key]:
            check(f"watched: {one.__name__}", partial(one, tap))
    print(f"{failed} failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
