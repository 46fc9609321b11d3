"""Runs each client once in a new session, and compares the recorded turns with the tokens that the engine sampled.

Prints a line per client; exit status 1 if one fails. Arguments are names of clients, "libraries" or "agents"; none
means all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from clients import APIS, LIBRARIES, Client
from harnesses import AGENTS
from proxy import Proxy
from sidecar import Sidecar, sidecar

from engine import Call, Distribution, Engine, Tokenizer

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs" / "guides" / "agents.md"
ASSETS = HERE.parents[1] / "src" / "demo" / "assets"
# the base URL of the examples in the document, without /v1
DOCUMENTED_URL = "http://127.0.0.1:30001/sessions/run-1"
GROUPS = {"libraries": LIBRARIES, "agents": AGENTS}
# nats; the logprobs of the rows are rounded to float32
ROUNDING = 1e-4
OTHER_APIS = {api: set(APIS.values()) - {path} for api, path in APIS.items()}


def reply(client: Client, work: str, prompt: str) -> str:
    return client.reply(prompt).replace("$WORK", work)


def run(client: Client, base_url: str, proxy: Proxy, home: Path, tools: Path) -> None:
    """Runs a client in a new process group with an empty home, and waits until it exits. What it needs is installed."""
    command = [part.format(here=HERE, tools=tools) for part in client.command]
    env = {"PATH": os.environ["PATH"], "LANG": "C.UTF-8", "HOME": str(home)}
    env |= {"CLIENT_BASE_URL": base_url, "CLIENT_API": client.api, "CLIENT_TOOLS": str(tools)}
    env |= dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy.url)
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
    assert not proxy.requests, f"requests to other hosts: {proxy.requests}"


def compare(client: Client, tap: Sidecar, calls: list[Call], vocabulary: int) -> str:
    """Checks that each call is a turn and each sampled token is trained exactly once. Returns the counts as text."""
    turns, rows = tap.turns(client.session), tap.trajectories(client.session)
    assert len(calls) >= client.least_turns, f"only {len(calls)} calls"
    assert len(turns) == len(calls), f"{len(turns)} turns of {len(calls)} calls"
    assert {turn["fault"] for turn in turns} == {None}, turns
    if client.causes is not None:
        causes = [turn["cause"] for turn in turns]
        starts = tuple(cause for cause in causes if cause != "extends")
        assert starts == client.causes, f"turns have the causes {causes}"
        assert len(rows) == len(starts), f"{len(rows)} paths instead of {len(starts)}"
    statuses = tap.statuses()
    expected = {"200"} | ({"400"} if client.refused else set())
    wrong = [
        path for path, codes in statuses.items() if path in OTHER_APIS[client.api] or not expected.issuperset(codes)
    ]
    refused = statuses.get(APIS[client.api], {}).get("400", 0)
    assert (wrong, refused) == ([], client.refused), f"requests, by path and status: {statuses}"
    retokenised = tuple(turn["turn"] for turn in turns if turn["context_retokenised"])
    assert client.retokenised in (None, retokenised), f"turns {retokenised} have context that was tokenised again"
    recorded = sorted((piece for row in rows for piece in trained(row)), key=lambda piece: piece[:2])
    sampled = sorted(calls, key=lambda call: (call.prompt, call.sampled))
    same = [piece[:2] for piece in recorded] == [(call.prompt, call.sampled) for call in sampled]
    assert same, "the trained tokens are not those that the engine sampled"
    for (_, _, logprobs, entropies), call in zip(recorded, sampled, strict=True):
        measured(call, logprobs, entropies, vocabulary)
    tokens = sum(len(call.sampled) for call in sampled)
    return f"{len(calls)} calls, {len(rows)} path{'s' * (len(rows) > 1)}, {tokens} sampled tokens trained"


def measured(call: Call, logprobs: list[Any], entropies: list[Any], vocabulary: int) -> None:
    """Checks the logprob and the entropy of each token of a call against the distribution that it was sampled from."""
    assert len(logprobs) == len(entropies) == len(call.sampled), "not one logprob and one entropy for each token"
    for logprob, entropy, of in zip(logprobs, entropies, call.distributions, strict=True):
        assert logprob is not None and abs(logprob - of.logprob(of.rank)) < ROUNDING, f"the logprob {logprob} of {of}"
        assert entropy is not None, f"no entropy of {of}"
        lower, upper = interval(of, call.top, vocabulary)
        inside = lower - ROUNDING <= entropy <= upper + ROUNDING
        assert inside and entropy < math.log(vocabulary), f"the entropy {entropy} is outside {lower} to {upper}"


def interval(of: Distribution, top: int, vocabulary: int) -> tuple[float, float]:
    """The smallest and the largest entropy that a distribution with these `top` largest probabilities can have."""
    head = [math.exp(of.logprob(rank)) for rank in range(top)]
    rest, outside = 1 - math.fsum(head), vocabulary - top
    known = math.fsum(-p * math.log(p) for p in head)
    full = math.floor(rest / head[-1])
    partial = rest - full * head[-1]
    lower = known - full * head[-1] * math.log(head[-1]) - (partial * math.log(partial) if partial > 0 else 0.0)
    return lower, known + rest * math.log(outside / rest)


def trained(row: dict[str, Any]) -> list[tuple[list[int], list[int], list[Any], list[Any]]]:
    """Returns for each trained segment the ids before it, and its own ids, logprobs and entropies. Checks that the mask
    is 1 only in them."""
    ids, mask, pieces = row["token_ids"], [0] * len(row["token_ids"]), []
    for segment in row["segments"]:
        if segment["loss_mask"]:
            start, end = segment["start"], segment["end"]
            pieces.append((ids[:start], ids[start:end], row["logprobs"][start:end], row["entropy"][start:end]))
            mask[start:end] = [1] * (end - start)
    assert row["loss_mask"] == mask, "loss_mask differs from the segments"
    return pieces


def undocumented() -> list[str]:
    """What docs/guides/agents.md has and the tests do not: rows with another version, and lines of configurations."""
    pinned = json.loads((HERE / "package.json").read_text())["dependencies"]
    versions = [f"{name} {version}" for name, version in pinned.items()]
    for file in HERE.glob("requirements-*.txt"):
        versions += file.read_text().replace("==", " ").splitlines()
    text = DOCUMENT.read_text()
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    named = [f"{row[0].removeprefix('| ').split(' ')[0]} {row[1]}" for row in rows if row[1] != "version"]
    assert named, "docs/guides/agents.md has no table"
    snippets = re.findall(r"<!-- tests/clients/(\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert snippets, "docs/guides/agents.md has no configuration"
    lines = [f"{file}: {line}" for file, snippet in snippets for line in untested(HERE / file, snippet)]
    return [f"{name} is not the pinned version" for name in named if name not in versions] + lines


def untested(file: Path, snippet: str) -> list[str]:
    """The lines of a configuration that the program does not use. Variables of the program match any text."""
    text = file.read_text()
    for variable, url in (("${CLIENT_BASE_URL%/v1}", DOCUMENTED_URL), ("$CLIENT_BASE_URL", f"{DOCUMENTED_URL}/v1")):
        text = text.replace(variable, url)
    lines = (re.split(r"\$\w+|\$\{[^}]*\}", line.strip()) for line in text.splitlines())
    used = [".*".join(map(re.escape, parts)) for parts in lines]
    return [line for line in map(str.strip, snippet.splitlines()) if not any(re.fullmatch(one, line) for one in used)]


def chosen(names: list[str]) -> list[Client]:
    """The clients of these names and groups."""
    known = [*LIBRARIES, *AGENTS]
    unknown = set(names) - {client.name for client in known} - set(GROUPS)
    assert not unknown, f"no such client: {sorted(unknown)}"
    wanted = {client.name for name in names for client in GROUPS.get(name, ())} | set(names)
    return [client for client in known if not names or client.name in wanted]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokentap")
    parser.add_argument("--tools", type=Path, help="the folder with the installed clients")
    parser.add_argument("--environments", action="store_true", help="prints the folders that the clients need")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    clients = chosen(args.names)
    if args.environments:
        print(*sorted({client.environment for client in clients}))
        return 0
    tools = args.tools.absolute()
    # exit normally, so that the started processes are stopped
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    tokenizer, failed = Tokenizer(ASSETS), 0
    for client in clients:
        begun = time.monotonic()
        home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        engine = Engine(tokenizer, partial(reply, client, f"{home.name}/work"))
        try:
            with home, Proxy() as proxy, sidecar(args.tokentap, engine.url, ASSETS) as tap:
                since = len(engine.calls)
                run(client, f"{tap.data}/sessions/{client.session}/v1", proxy, Path(home.name), tools)
                counts = compare(client, tap, engine.calls[since:], tokenizer.size)
        except Exception as error:
            failed += 1
            print(f"FAIL {client.name}: {type(error).__name__}: {error}", flush=True)
        else:
            print(f"ok   {client.name}: {counts} ({time.monotonic() - begun:.1f} s)", flush=True)
        finally:
            engine.close()
    for name in undocumented():
        failed += 1
        print(f"FAIL docs/guides/agents.md: {name}", flush=True)
    print(f"{failed} failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
