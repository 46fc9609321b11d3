# SPDX-License-Identifier: Apache-2.0
"""Runs tokentaps that archive to one server, with crashes, two archivers of one store and an outage, and compares the rows of the archive
with what GET /v1/trajectories listed."""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet
from pyarrow.fs import LocalFileSystem

import tokentap
from faulty import FaultyS3
from tokentap import Client
from tokentap._archive import _filesystem

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "testtest", "AWS_REGION": "us-east-1"}
BUCKET = "rollouts"

Key = tuple[str, int]
Row = tuple[list[int], list[int]]


class Tokentap:
    """A `tokentap demo` that archives."""

    def __init__(self, binary: str, uri: str, log: Path, *flags: str) -> None:
        ports = ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0"]
        command = [binary, "demo", *ports, "--log", "info,tokentap::archive=debug", "--archive", uri, *flags]
        self.log = log
        with log.open("a") as errors:
            self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
        assert self.process.stdout is not None
        output = ""
        for line in self.process.stdout:
            output += line
            if line.startswith("Metrics:"):
                break
        data, control = re.search(r"(http://[\d.:]+)/generate", output), re.search(r"(http://[\d.:]+)/v1", output)
        assert data and control, f"{output}\n{log.read_text()}"
        self.client = Client(data[1], control[1], retries=20, pause=0.2)
        self.control = control[1]

    def record(self, prefix: str, count: int) -> None:
        """Records finished sessions: every third one has a second sample of its first prompt, and so two paths."""
        for at in range(count):
            name, sampling = f"{prefix}-{at}", {"max_new_tokens": 4, "ignore_eos": True}
            first = self.client.generate(input_ids=[299, 467], session=name, sampling_params=sampling)
            if at % 3 == 0:
                self.client.generate(input_ids=[299, 467], session=name, sampling_params=sampling)
            prompt = [299, 467, *first.output_ids, 258]
            self.client.generate(input_ids=prompt, session=name, sampling_params=sampling, done=True)

    def finished(self) -> dict[Key, Row]:
        """The finished paths by session and leaf."""
        with urllib.request.urlopen(f"{self.control}/v1/trajectories") as reply:
            lines = [json.loads(line) for line in reply]
        assert all("token_ids" in line for line in lines), "no path is gone"
        return {(line["session"], line["leaf"]): (line["token_ids"], line["loss_mask"]) for line in lines}

    def metric(self, name: str) -> float:
        """The sum of a metric's series."""
        with urllib.request.urlopen(f"{self.control}/metrics") as reply:
            lines = reply.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def end(self, by: signal.Signals = signal.SIGTERM) -> None:
        """Ends it; after SIGTERM it archives what has finished."""
        self.process.send_signal(by)
        code = self.process.wait(timeout=60)
        assert code == (0 if by == signal.SIGTERM else -by), f"{code}\n{self.log.read_text()}"


@contextmanager
def moto() -> Iterator[str]:
    """moto's S3 server in this process."""
    import boto3
    from moto.server import ThreadedMotoServer

    # its access log
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    boto3.client("s3", endpoint_url=f"http://{host}:{port}").create_bucket(Bucket=BUCKET)
    yield f"http://{host}:{port}"
    server.stop()


class S3s:
    """s3s-fs, which can be stopped and started again."""

    def __init__(self, binary: str, root: Path) -> None:
        (root / BUCKET).mkdir(parents=True)
        with socket.socket() as found:
            found.bind(("127.0.0.1", 0))
            self.port = found.getsockname()[1]
        keys = ["--access-key", CREDENTIALS["AWS_ACCESS_KEY_ID"], "--secret-key", CREDENTIALS["AWS_SECRET_ACCESS_KEY"]]
        self.command = [binary, "--host", "127.0.0.1", "--port", str(self.port), *keys, str(root)]
        self.start()

    def start(self) -> None:
        """Starts it, and waits until it accepts connections."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for(lambda: socket.socket().connect_ex(("127.0.0.1", self.port)) == 0, "s3s-fs listens")

    def stop(self) -> None:
        """Ends it. Its objects stay."""
        self.process.kill()
        self.process.wait()


def wait_for(condition: Any, what: str, seconds: float = 60) -> None:
    """Polls: servers that others wrote have no events for this."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.1)


def rows(uri: str, restart_after: int) -> list[tuple[Key, Row]]:
    """All rows, by a reader that restarts with the last cursor after a few steps."""
    found: list[tuple[Key, Row]] = []
    cursor = None
    while True:
        steps = 0
        for files, after in tokentap.dataset(uri, cursor):
            for file in files:
                scheme, _, path = file.rpartition("://")
                filesystem = _filesystem(uri, "s3", BUCKET) if scheme else LocalFileSystem()
                columns = ["session", "leaf", "token_ids", "loss_mask"]
                table = pyarrow.parquet.read_table(path, columns=columns, filesystem=filesystem, partitioning=None)
                found += [((r["session"], r["leaf"]), (r["token_ids"], r["loss_mask"])) for r in table.to_pylist()]
            cursor, steps = after, steps + 1
            if steps == restart_after:
                break
        if steps == 0:
            return found


def check(options: argparse.Namespace, uri: str, work: Path, server: S3s | FaultyS3 | None) -> None:
    """Records, crashes, archives, and compares."""
    expected: dict[Key, Row] = {}
    data, log = work / "data", work / "log"

    def start(*flags: str) -> Tokentap:
        return Tokentap(options.tokentap, uri, log, *flags)

    # two processes without a log, one of which archives each path at once
    faulty = server if isinstance(server, FaultyS3) else None
    pair = [start("--archive-bytes", "1"), start(*(["--archive-interval", "1s"] if faulty else []))]
    for at, process in enumerate(pair):
        process.record(f"pair{at}", 10)
        finished = process.finished()
        expected |= finished
        if faulty:
            # what storage refuses until the process has to end is lost without a log
            wait_for(lambda: process.metric("tokentap_archive_rows_total") == len(finished), "faults end", 300)
    for process in pair:
        process.end()

    # a crash before anything is archived, and a restart
    crashed = start("--data-dir", str(data))
    crashed.record("crash", 10)
    expected |= crashed.finished()
    crashed.end(signal.SIGKILL)
    # two archivers of one store at once: copies of its log, with other ends of their batches
    copies = [work / "copy0", work / "copy1"]
    for copy in copies:
        shutil.copytree(data, copy)
    twins = [
        start("--data-dir", str(copies[0]), "--archive-bytes", "1"),
        start("--data-dir", str(copies[1]), "--archive-bytes", "20KiB"),
    ]
    for twin in twins:
        # a call is served once the sessions are restored
        twin.client.generate(input_ids=[299], sampling_params={"max_new_tokens": 1})
    if faulty:
        in_crash = sum(session.startswith("crash") for session, _ in expected)
        archived = "tokentap_archive_rows_total"
        wait_for(lambda: sum(twin.metric(archived) for twin in twins) == in_crash, "faults end", 300)
    for twin in twins:
        twin.end()
    collisions = log.read_text().count("another archiver has archived these paths")

    if faulty:
        # what is lost by faults is a matter of writing; each fault has happened
        print(f"faults: {sum(faulty.injected.values())}: {dict(sorted(faulty.injected.items()))}")
        faulty.rate = 0
    if isinstance(server, S3s):
        # an outage: requests are served, and the paths are archived afterwards
        out = start("--archive-interval", "1s")
        server.stop()
        out.record("outage", 5)
        expected |= out.finished()
        wait_for(lambda: out.metric("tokentap_archive_failures_total") > 0, "the outage is counted")
        server.start()
        wait_for(lambda: out.metric("tokentap_archive_oldest_seconds") == 0, "the archive catches up")
        out.end()

    for operation in ("ls", "verify"):
        made = subprocess.run([options.tokentap, "archive", operation, uri], capture_output=True, text=True)
        assert made.returncode == 0, made.stdout + made.stderr
        summary = made.stdout.splitlines()[-1]
    found = rows(uri, restart_after=3)
    keys = [key for key, _ in found]
    assert len(set(keys)) == len(keys), "no row twice"
    assert dict(found) == expected, f"{len(found)} rows, {len(expected)} finished paths"
    print(f"ok  {options.server:<7} {len(found)} rows, {collisions} refused manifests; {summary}")
    if options.examples:
        trained = sum(sum(mask) for _, mask in expected.values())
        for example in sorted(Path(options.examples).glob("archive_*.py")):
            made = subprocess.run([sys.executable, str(example), uri], capture_output=True, text=True, timeout=200)
            line = f"{len(expected)} rows, {trained} trained tokens, cursor "
            assert made.returncode == 0 and made.stdout.startswith(line), f"{example}\n{made.stdout}{made.stderr}"
            print(f"ok  {example.name}")


def main() -> None:
    """Runs the check with one server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokentap", required=True)
    parser.add_argument("--server", choices=["moto", "faulty", "s3s-fs", "folder"], required=True)
    parser.add_argument("--s3s")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--examples")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        if options.server == "folder":
            return check(options, f"file://{work}/archive", work, None)
        os.environ.update(CREDENTIALS)
        uri = f"s3://{BUCKET}/some/prefix"
        if options.server == "moto":
            with moto() as endpoint:
                os.environ["AWS_ENDPOINT_URL"] = endpoint
                return check(options, uri, work, None)
        if options.server == "faulty":
            with moto() as endpoint:
                faulty = FaultyS3(endpoint, 0.3, options.seed)
                os.environ["AWS_ENDPOINT_URL"] = faulty.endpoint
                return check(options, uri, work, faulty)
        server = S3s(options.s3s, work / "s3")
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.port}"
        try:
            return check(options, uri, work, server)
        finally:
            server.stop()


if __name__ == "__main__":
    main()
