#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""prove.py --tokentap BINARY | --base URL --control URL --model FOLDER

verl's own agent loops, workers and managers on ray generate through tokentap, in front of its demo engine or of a
running engine that serves FOLDER. Prints a line per check; exit status 1 if one failed."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

import aborted
import engines
import lab
import missing
import newer
import ray
import resumed
import traced
import weights
import worker
from account import Account
from egpo import compare
from older import Older
from tokentap import Client

QUESTIONS = ["What is the weather today?", "When is high water on Monday?", "What is two and three?"]
THINK = (1020, 1021)
# The whole vocabulary of the demo model, so that entropies are exact up to float32.
EXACT = ("--top-logprobs", "1024", "--think-tokens", f"{THINK[0]},{THINK[1]}")
VERSION = 7
# At this temperature the demo model calls tools more often than at 1.
COOL = 0.5


def with_demo(binary: str, work: Path, account: Account) -> None:
    """All checks, with a model that calls tools."""
    with engines.demo(binary, *EXACT) as at, Client(at.base, at.control) as client:
        weights.check(at, client, account, VERSION)
        named = lab.loops(work / "named.yaml", at.base, at.control)
        plain = lab.demo_model(work / "plain")
        single = Older("demo", lab.config(plain, named), client, account)
        data = single.batch("tokentap_agent", QUESTIONS, 4)
        single.check_truth(data, engines.whole_vocabulary(at.engine, 1024, 1.0), 1e-4)
        single.check_versions(data, VERSION)
        account.check("demo: EGPO", *compare(data, client, THINK))

        thoughtful = lab.demo_model(work / "thoughtful", thought=lab.THOUGHT)
        tools = Older("demo with tools", lab.config(thoughtful, named, temperature=COOL), client, account)
        data = tools.batch("tokentap_tool_agent", QUESTIONS, 4)
        tools.check_tools(data)
        tools.check_truth(data, engines.whole_vocabulary(at.engine, 1024, COOL), 1e-4)
        account.check("demo with tools: EGPO", *compare(data, client, THINK))

        unnamed = lab.loops(work / "unnamed.yaml", at.base, None)
        for model, loop in ((plain, "tokentap_agent"), (thoughtful, "tokentap_tool_agent")):
            config = lab.config(model, unnamed, n=2, **{"agent.num_workers": 1})
            newer.check(config, client, account, QUESTIONS, loop, THINK)
        worker.check(plain, unnamed, client, account, engines.whole_vocabulary(at.engine, 1024, 1.0))
        # runs last, because it changes the weights
        aborted.check(at, client, account)
    missing.check(binary, plain, work, account)
    resumed.check(account)
    traced.check(account)


def with_engine(base: str, control: str, model: Path, work: Path, account: Account) -> None:
    """An engine with random weights, every reply of which is parsed as a tool call."""
    with Client(base, control) as client:
        named = lab.loops(work / "named.yaml", base, None)
        single = Older("engine", lab.config(model, named), client, account)
        data = single.batch("tokentap_agent", QUESTIONS, 4)
        single.check_concurrency(data)
        single.check_truth(data, engines.weights(str(model)), None)
        config = lab.config(model, named, **{"multi_turn.format": "always", "response_length": 96})
        tools = Older("engine with tools", config, client, account)
        data = tools.batch("tokentap_tool_agent", QUESTIONS, 2)
        tools.check_tools(data)


def main() -> int:
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--tokentap", default=os.environ.get("TOKENTAP"))
    args.add_argument("--base")
    args.add_argument("--control")
    args.add_argument("--model", type=Path)
    parsed, account = args.parse_args(), Account()
    # workers are separate processes and must find these modules
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(lab.HERE), os.environ.get("PYTHONPATH")]))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # actors are only counted, not run concurrently
    ray.init(num_cpus=16, include_dashboard=False, object_store_memory=256 << 20, logging_level="warning")
    try:
        with tempfile.TemporaryDirectory() as work:
            if parsed.base:
                with_engine(parsed.base, parsed.control, parsed.model, Path(work), account)
            else:
                with_demo(parsed.tokentap, Path(work), account)
    finally:
        ray.shutdown()
    print(f"{account.passed} ok, {len(account.failed)} FAIL")
    return int(bool(account.failed))


if __name__ == "__main__":
    sys.exit(main())
