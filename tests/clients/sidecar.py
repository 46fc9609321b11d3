# SPDX-License-Identifier: Apache-2.0
"""A `tokentap serve` in front of the scripted engine, and its recorded sessions."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PATIENCE_SECONDS = 60.0
# log messages, in any order; until the last one the engine also receives requests of tokentap's probes
READY = {"chat completions are served from tokens", "the upstream has been probed"}
READY_FOR_PICTURES = {"prompts with pictures are built from tokens"}
# the log message in place of the last one
NOT_READY = "prompts with pictures go to the engine's own endpoint"


@dataclass(frozen=True)
class Sidecar:
    """The URLs of both ports."""

    data: str
    control: str

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.control}{path}", timeout=PATIENCE_SECONDS) as reply:
            return json.load(reply)

    def turns(self, session: str) -> list[dict[str, Any]]:
        turns: list[dict[str, Any]] = self.get(f"/v1/sessions/{session}")["list"]
        return turns

    def trajectories(self, session: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.get(f"/v1/sessions/{session}/trajectories?classes=all")["trajectories"]
        return rows

    def exported(self, session: str) -> list[dict[str, Any]]:
        """The rows of an export of all classes, with the bytes of their pictures."""
        wanted = {"sessions": [session], "format": "jsonl", "images": "embed", "classes": ["all"]}
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(f"{self.control}/v1/samples", json.dumps(wanted).encode(), headers)
        with urllib.request.urlopen(request, timeout=PATIENCE_SECONDS) as reply:
            return [json.loads(line) for line in reply]

    def statuses(self) -> dict[str, dict[str, int]]:
        """The numbers of replies of both ports so far, by path and status."""
        with urllib.request.urlopen(f"{self.control}/metrics", timeout=PATIENCE_SECONDS) as reply:
            text = reply.read().decode()
        pattern = r'^tokentap_http_requests_total\{endpoint="([^"]+)".*status_code="(\d+)".*\} (\d+)$'
        statuses: dict[str, dict[str, int]] = {}
        for path, status, count in re.findall(pattern, text, re.MULTILINE):
            of_path = statuses.setdefault(path, {})
            of_path[status] = of_path.get(status, 0) + int(count)
        return statuses


@contextlib.contextmanager
def sidecar(binary: str, engine: str, tokenizer: Path, ready: set[str]) -> Iterator[Sidecar]:
    """Yields the ports once the log has the messages `ready`."""
    command = [binary, "serve", "--upstream", engine, "--tokenizer", str(tokenizer), "--separate-reasoning", "always"]
    command += ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log-format", "json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout
    try:
        ports, missing = None, set(ready)
        while missing:
            line = process.stdout.readline()
            assert line, "tokentap ended before it was ready"
            entry = json.loads(line)
            if "data" in entry and "control" in entry:
                ports = Sidecar(entry["data"], entry["control"])
            assert entry["message"] != NOT_READY or ready == READY, entry
            missing.discard(entry["message"])
        assert ports, "the log has no line with the ports"
        # a full pipe would block tokentap
        threading.Thread(target=process.stdout.read, daemon=True).start()
        yield ports
    finally:
        process.terminate()
        process.wait(PATIENCE_SECONDS)
