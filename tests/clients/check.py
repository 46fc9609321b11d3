# SPDX-License-Identifier: Apache-2.0
"""Runs each client once in a new session, and compares the recorded turns with the tokens that the engine sampled and
the pictures that it got, and the paths, flags and classes with the table in docs/guides/agents.md.

Prints a line per client; exit status 1 if one fails. Arguments are names of clients, "libraries" or "agents"; none
means all. With UPDATE=1 in the environment, the rows of the clients that ran are written into the table.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[1]))
import vision
from clients import APIS, LIBRARIES, Client
from compatibility import record_passed
from components import COMPONENTS
from harnesses import AGENTS
from proxy import Proxy
from sidecar import READY, READY_FOR_PICTURES, Sidecar, sidecar

from engine import Call, Distribution, Engine, Picture, Tokenizer

HERE = Path(__file__).resolve().parent
DOCUMENT = HERE.parents[1] / "docs" / "guides" / "agents.md"
ASSETS = HERE.parents[1] / "src" / "demo" / "assets"
# the base URL of the examples in the document, without /v1
DOCUMENTED_URL = "http://127.0.0.1:30001/sessions/run-1"
# the first lines of the table of paths, flags and classes
TABLE = "| run | requests | turns that begin a path | turns with a flag | turns with a class |\n|---|---|---|---|---|\n"
FLAGS = ("foreign_assistant_text", "context_retokenised", "inserted_end_of_turn")
GROUPS = {"libraries": LIBRARIES, "agents": AGENTS}
# nats; the logprobs of the rows are rounded to float32
ROUNDING = 1e-4
# widths and heights of the screenshots, in pixels; agents reduce the first one
SIZES = ((2560, 1600), (1280, 800), (390, 844), (64, 96))
OTHER_APIS = {api: set(APIS.values()) - {path} for api, path in APIS.items()}


def reply(client: Client, work: str, prompt: str) -> str:
    return client.reply(prompt).replace("$WORK", work)


def draw(work: Path, count: int) -> list[bytes]:
    """Writes screenshots of different sizes into this folder."""
    screenshots = [vision.screenshot(*size, seed) for seed, size in enumerate(SIZES[:count], 1)]
    work.mkdir()
    for at, screenshot in enumerate(screenshots, 1):
        (work / f"screen-{at}.png").write_bytes(screenshot)
    return screenshots


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


def compare(client: Client, tap: Sidecar, calls: list[Call], vocabulary: int) -> tuple[str, str]:
    """Checks that each call is a turn and each sampled token is trained exactly once, with its logprob and an entropy.
    Returns the counts as text, and the row of the documented table."""
    turns, rows = tap.turns(client.session), tap.trajectories(client.session)
    assert len(calls) >= client.least_turns, f"only {len(calls)} calls"
    assert len(turns) == len(calls), f"{len(turns)} turns of {len(calls)} calls"
    assert {turn["fault"] for turn in turns} == {None}, turns
    statuses = tap.statuses()
    expected = {"200"} | ({"400"} if client.refused else set())
    wrong = [
        path for path, codes in statuses.items() if path in OTHER_APIS[client.api] or not expected.issuperset(codes)
    ]
    refused = statuses.get(APIS[client.api], {}).get("400", 0)
    assert (wrong, refused) == ([], client.refused), f"requests, by path and status: {statuses}"
    recorded = sorted((segment for row in rows for segment in trained(row)), key=lambda segment: segment[:2])
    sampled = sorted(calls, key=lambda call: (call.prompt, call.sampled))
    same = [segment[:2] for segment in recorded] == [(call.prompt, call.sampled) for call in sampled]
    assert same, "the trained tokens are not those that the engine sampled"
    for (_, _, logprobs, entropies), call in zip(recorded, sampled, strict=True):
        measured(call, logprobs, entropies, vocabulary)
    tokens = sum(len(call.sampled) for call in sampled)
    counts = f"{len(calls)} calls, {len(rows)} path{'s' * (len(rows) > 1)}, {tokens} sampled tokens trained"
    begins = counted(turn["cause"] for turn in turns if turn["cause"] != "extends")
    flags = counted(flag for flag in FLAGS for turn in turns if turn[flag])
    classes = counted(name for turn in turns if (name := (turn["labels"] or {}).get("request_class")))
    return counts, f"| {client.name} | `{APIS[client.api]}` | {begins} | {flags} | {classes} |"


def pictured(client: Client, tap: Sidecar, calls: list[Call], screenshots: list[bytes]) -> str:
    """Checks that the only path has the pictures of each call where the engine got them, that their bytes are those of
    the files except for the largest one, and the settings of the processor. Returns the counts as text."""
    [row] = tap.exported(client.session)
    images = [Picture(image["sha256"], image["start"], image["end"]) for image in row["images"]]
    for call in calls:
        end = len(call.prompt)
        assert call.pictures == [image for image in images if image.end <= end], "other pictures than the engine got"
    contents = [base64.b64decode(content) for content in row["image_data"]]
    assert [hashlib.sha256(content).hexdigest() for content in contents] == [image.sha256 for image in images]
    assert len(set(contents)) == len(screenshots), f"{len(contents)} pictures of {len(screenshots)} files"
    assert set(contents) - set(screenshots) == {contents[0]}, "the exported bytes are not those of the files"
    assert json.loads(row["image_settings"])["processor"] == vision.PROCESSOR, row["image_settings"]
    with_pictures = sum(bool(call.pictures) for call in calls)
    tokens = sum(image.end - image.start for image in images)
    sizes = ", ".join("x".join(map(str, vision.size(content))) for content in contents)
    return f"pictures of {sizes} pixels and {tokens} tokens in the prompts of {with_pictures} calls"


def counted(names: Iterable[str]) -> str:
    """The different names, each with its count where that is not 1."""
    return ", ".join(f"{count} `{name}`" if count > 1 else f"`{name}`" for name, count in Counter(names).items())


def measured(call: Call, logprobs: list[Any], entropies: list[Any], vocabulary: int) -> None:
    """Checks the logprob and the entropy of each token of a call against the distribution that it was sampled from."""
    assert len(logprobs) == len(entropies) == len(call.sampled), "not one logprob and one entropy for each token"
    for logprob, entropy, of in zip(logprobs, entropies, call.distributions, strict=True):
        assert None not in (logprob, entropy), f"the logprob {logprob} and the entropy {entropy} of {of}"
        assert abs(logprob - of.logprob(of.rank)) < ROUNDING, f"the logprob {logprob} of {of}"
        lower, upper = interval(of, call.top, vocabulary)
        upper = min(upper, math.log(vocabulary))
        assert lower - ROUNDING <= entropy <= upper + ROUNDING, f"the entropy {entropy} is outside {lower} to {upper}"


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
    ids, mask, segments = row["token_ids"], [0] * len(row["token_ids"]), []
    for segment in row["segments"]:
        if segment["loss_mask"]:
            start, end = segment["start"], segment["end"]
            segments.append((ids[:start], ids[start:end], row["logprobs"][start:end], row["entropy"][start:end]))
            mask[start:end] = [1] * (end - start)
    assert row["loss_mask"] == mask, "loss_mask differs from the segments"
    return segments


def table() -> tuple[str, dict[str, str], str]:
    """The document before its table, the rows by name, and the document after it."""
    before, _, rest = DOCUMENT.read_text().partition(TABLE)
    lines, _, after = rest.partition("\n\n")
    return before, {line.split(" | ")[0].removeprefix("| "): line for line in lines.splitlines()}, f"\n\n{after}"


def changed(rows: dict[str, str]) -> list[str]:
    """What the table has and the tests do not: other rows of clients that ran, and rows without a client."""
    documented, known = table()[1], {client.name for client in [*LIBRARIES, *AGENTS]}
    other = [f"UPDATE=1 writes the row {row}" for name, row in rows.items() if documented.get(name) != row]
    return other + [f"no client has the row {row}" for name, row in documented.items() if name not in known]


def document(rows: dict[str, str]) -> None:
    """Writes rows into the table, in the order of the clients. Rows of clients that did not run stay."""
    before, documented, after = table()
    documented |= rows
    lines = [documented[client.name] for client in [*LIBRARIES, *AGENTS] if client.name in documented]
    DOCUMENT.write_text(before + TABLE + "\n".join(lines) + after)


def undocumented() -> list[str]:
    """What docs/guides/agents.md has and the tests do not: rows with another version, and lines of configurations."""
    pinned = json.loads((HERE / "package.json").read_text())["dependencies"]
    versions = [f"{name} {version}" for name, version in pinned.items()]
    for file in HERE.glob("requirements-*.txt"):
        versions += file.read_text().replace("==", " ").splitlines()
    before, _, after = table()
    text = before + after
    rows = [line.split(" | ") for line in text.splitlines() if line.startswith("| ")]
    named = [f"{row[0].removeprefix('| ').split(' ')[0]} {row[1]}" for row in rows if row[1] != "version"]
    assert named, "docs/guides/agents.md has no table"
    snippets = re.findall(r"<!-- tests/clients/(\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL)
    assert snippets, "docs/guides/agents.md has no configuration"
    lines = [f"{file}: {line}" for file, snippet in snippets for line in untested(HERE / file, snippet)]
    placed = Counter(name for component in COMPONENTS for name in component.clients.split())
    lines += [f"{client.name} is not in one component" for client in [*LIBRARIES, *AGENTS] if placed[client.name] != 1]
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
        print(*sorted({name for client in clients for name in client.needs}))
        return 0
    tools = args.tools.absolute()
    # exit normally, so that the started processes are stopped
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    failed, rows, passed, read = 0, {}, set(), cache(Tokenizer)
    for client in clients:
        begun = time.monotonic()
        home = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        model = vision.folder(tools / "templates") if client.screenshots else ASSETS
        tokenizer = read(model)
        ready = READY | READY_FOR_PICTURES if client.screenshots else READY
        engine = Engine(tokenizer, partial(reply, client, f"{home.name}/work"))
        try:
            with home, Proxy() as proxy, sidecar(args.tokentap, engine.url, model, ready) as tap:
                since = len(engine.calls)
                screenshots = draw(Path(home.name) / "work", client.screenshots)
                run(client, f"{tap.data}/sessions/{client.session}/v1", proxy, Path(home.name), tools)
                # tokentap may ask the engine for a picture again, without logprobs
                calls = [call for call in engine.calls[since:] if call.top]
                counts, rows[client.name] = compare(client, tap, calls, tokenizer.size)
                if screenshots:
                    counts += f", {pictured(client, tap, calls, screenshots)}"
        except Exception as error:
            failed += 1
            print(f"FAIL {client.name}: {type(error).__name__}: {error}", flush=True)
        else:
            passed.add(client.name)
            print(f"ok   {client.name}: {counts} ({time.monotonic() - begun:.1f} s)", flush=True)
        finally:
            engine.close()
    if os.environ.get("UPDATE") == "1":
        document(rows)
    documented = table()[1]
    # the newest versions are not those that the documents name
    for component in () if os.environ.get("LATEST") else COMPONENTS:
        names = component.clients.split()
        if passed.issuperset(names) and all(rows[name] == documented.get(name) for name in names):
            command = f"bash tests/clients/run.sh {component.group}"
            record_passed(component.name, component.version(tools), command)
    for name in [*changed(rows), *undocumented()]:
        failed += 1
        print(f"FAIL docs/guides/agents.md: {name}", flush=True)
    print(f"{failed} failed" if failed else "all checks passed")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
