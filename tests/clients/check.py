"""Runs each client once in a new session, and compares the recorded turns with the tokens that the engine sampled.

Prints a line per client; exit status 1 if one fails. Arguments are the names of the clients to run, by default all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from clients import CLIENTS, Client
from engine import Call, Engine, Tokenizer
from script import script
from sidecar import Sidecar, sidecar

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs" / "guides" / "agents.md"
ASSETS = HERE.parents[1] / "src" / "demo" / "assets"


def run(client: Client, base_url: str, home: Path, tools: Path) -> None:
    """Runs a client in a new process group with an empty home, and waits until it exits.

    HTTP_PROXY is an address without a listener, so that the client cannot reach the network: everything it needs is installed.
    """
    command = [part.format(here=HERE, tools=tools) for part in client.command]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(home)}
    env |= {"CLIENT_BASE_URL": base_url, "CLIENT_TOOLS": str(tools)}
    env |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), "http://127.0.0.1:9")
    env |= {"NO_PROXY": "127.0.0.1,localhost", "no_proxy": "127.0.0.1,localhost"}
    env |= {"PYTHONDONTWRITEBYTECODE": "1", "NO_COLOR": "1", "CI": "1", "DO_NOT_TRACK": "1", **client.env}
    with (home / ".output").open("w+b") as output:
        process = subprocess.Popen(
            command, cwd=home, env=env, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        try:
            code: int | None = process.wait(client.limit_seconds)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # the process group includes child processes that the client left running
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    how = f"no end after {client.limit_seconds} s" if code is None else f"exit {code}"
    assert code == 0, f"{how}:\n{text[-3000:]}"


def compare(client: Client, tap: Sidecar, calls: list[Call]) -> str:
    """Checks that each call is a turn of the session and each sampled token is trained exactly once. Returns the counts as text."""
    turns, rows = tap.turns(client.session), tap.trajectories(client.session)
    assert len(calls) >= client.least_turns, f"only {len(calls)} calls"
    assert len(turns) == len(calls), f"{len(turns)} turns of {len(calls)} calls"
    assert {turn["fault"] for turn in turns} == {None}, turns
    causes = [turn["cause"] for turn in turns]
    assert client.paths in (None, len(rows)), f"{len(rows)} paths instead of {client.paths}: {causes}"
    if client.paths == 1:
        assert causes == ["first", *["extends"] * (len(turns) - 1)], causes
    retokenised = tuple(turn["turn"] for turn in turns if turn["context_retokenised"])
    assert client.retokenised in (None, retokenised), f"turns {retokenised} have context that was tokenised again"
    recorded = sorted(pair for row in rows for pair in trained(row))
    sampled = sorted((call.prompt, call.sampled) for call in calls)
    assert recorded == sampled, "the trained tokens are not those that the engine sampled"
    tokens = sum(len(ids) for _, ids in sampled)
    return f"{len(calls)} calls, {len(rows)} path{'s' * (len(rows) > 1)}, {tokens} sampled tokens trained"


def trained(row: dict[str, Any]) -> list[tuple[list[int], list[int]]]:
    """Returns for each trained segment the ids before it and its own ids. Checks that the mask is 1 only in these segments."""
    ids, mask, pairs = row["token_ids"], [0] * len(row["token_ids"]), []
    for segment in row["segments"]:
        if segment["loss_mask"]:
            start, end = segment["start"], segment["end"]
            pairs.append((ids[:start], ids[start:end]))
            mask[start:end] = [1] * (end - start)
    assert row["loss_mask"] == mask, "loss_mask differs from the segments"
    return pairs


def undocumented() -> list[str]:
    """The rows of docs/guides/agents.md whose version differs from the pinned one."""
    pinned = json.loads((HERE / "package.json").read_text())["dependencies"]
    versions = [f"{name} {version}" for name, version in pinned.items()]
    for file in HERE.glob("requirements-*.txt"):
        versions += file.read_text().replace("==", " ").splitlines()
    rows = [line.split(" | ") for line in DOCUMENT.read_text().splitlines() if line.startswith("| ")]
    named = [f"{row[0].removeprefix('| ').split(' ')[0]} {row[1]}" for row in rows if row[1] != "version"]
    assert named, "docs/guides/agents.md has no table"
    return [name for name in named if name not in versions]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokentap", required=True)
    parser.add_argument("--tools", required=True, type=Path, help="the folder with the installed clients")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    tools = args.tools.absolute()
    unknown = set(args.names) - {client.name for client in CLIENTS}
    assert not unknown, f"no such client: {sorted(unknown)}"
    # exit normally, so that the started processes are stopped
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tokenizer, failed = Tokenizer(ASSETS), 0
    for client in CLIENTS:
        if args.names and client.name not in args.names:
            continue
        begun = time.monotonic()
        engine = Engine(tokenizer, script(client.rules))
        try:
            with tempfile.TemporaryDirectory() as home, sidecar(args.tokentap, engine.url, ASSETS) as tap:
                since = len(engine.calls)
                run(client, f"{tap.data}/sessions/{client.session}/v1", Path(home), tools)
                counts = compare(client, tap, engine.calls[since:])
        except Exception as error:
            failed += 1
            print(f"FAIL {client.name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok   {client.name}: {counts} ({time.monotonic() - begun:.1f} s)", flush=True)
        finally:
            engine.close()
    for name in undocumented():
        failed += 1
        print(f"FAIL docs/guides/agents.md: {name} is not the pinned version", flush=True)
    print(f"{failed} failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
