# SPDX-License-Identifier: Apache-2.0
"""The addresses of tokentap, its recorded sessions, and a tokentap whose calls to the engine are recorded."""

from __future__ import annotations

import contextlib
import json
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from recorder import Recorder
from ways import Delivery

PATIENCE = 60.0

SERVED = "chat completions are served from tokens"
FORWARDED = "chat completions go to the engine's own endpoint"


@dataclass
class Tap:
    """Both ports; `engine` has the calls to the engine, if they are recorded."""

    data: str
    control: str
    token: str | None = None
    key: str = "none"
    engine: Recorder | None = None

    @contextlib.contextmanager
    def delivery(self, session: str | None, **options: Any) -> Iterator[Delivery]:
        to = Delivery.to(self.data, session, **{"key": self.key, **options})
        try:
            yield to
        finally:
            to.close()

    def get(self, path: str) -> Any:
        headers = {"authorization": f"Bearer {self.token}"} if self.token else {}
        request = urllib.request.Request(f"http://{self.control}{path}", headers=headers)
        with urllib.request.urlopen(request, timeout=PATIENCE) as reply:
            return json.load(reply)

    def turns(self, session: str) -> list[dict[str, Any]]:
        """The turns of a session; empty if it is unknown."""
        try:
            return self.get(f"/v1/sessions/{session}")["list"]
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return []
            raise

    def rows(self, session: str) -> list[dict[str, Any]]:
        return self.get(f"/v1/sessions/{session}/trajectories")["trajectories"]


def soon(what: str, holds: Any) -> None:
    until = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.02)


@contextlib.contextmanager
def watched(tokentap: str, engine: str, log: str, *flags: str, ready: str = SERVED) -> Iterator[Tap]:
    """A tokentap whose engine is a recorder in front of `engine`; it is ready once its log has `ready`."""
    recorder = Recorder(engine)
    command = [tokentap, "serve", "--upstream", f"http://{recorder.address}", "--listen", "127.0.0.1:0"]
    command += ["--control-listen", "127.0.0.1:0", "--log-format", "json", *flags]
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    try:
        yield Tap(*addresses(process, log, ready), engine=recorder)
    finally:
        process.terminate()
        process.wait(PATIENCE)
        recorder.close()


def addresses(process: subprocess.Popen[bytes], log: str, ready: str) -> list[str]:
    """Both ports, once the log has `ready`."""
    until = time.monotonic() + PATIENCE
    while True:
        with open(log) as file:
            lines = [json.loads(line) for line in file if line.startswith("{") and line.endswith("}\n")]
        messages = {line["message"] for line in lines}
        if ready in messages:
            listening = next(line for line in lines if "control" in line and "data" in line)
            return [listening[name].removeprefix("http://") for name in ("data", "control")]
        assert process.poll() is None and time.monotonic() < until, f"tokentap did not start: {lines[-3:]}"
        time.sleep(0.02)
