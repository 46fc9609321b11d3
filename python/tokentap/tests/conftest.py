# SPDX-License-Identifier: Apache-2.0
"""A running demo, a scripted server, and one interface to both clients."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from scripted import Scripted

import tokentap
from tokentap import AsyncClient, Client

ROOT = Path(__file__).resolve().parents[3]


@dataclass(frozen=True)
class Demo:
    """The addresses of a running `tokentap demo`."""

    data: str
    control: str


def binary() -> str:
    """The tokentap under test; without one the tests fail instead of being skipped."""
    named = os.environ.get("TOKENTAP_BIN")
    built = ROOT / "target" / "debug" / "tokentap"
    found = named or (str(built) if built.exists() else shutil.which("tokentap"))
    assert found, "no tokentap: cargo build, or TOKENTAP_BIN=..."
    return found


@contextmanager
def running(*flags: str) -> Iterator[Demo]:
    """Runs a separate demo."""
    with tokentap.demo(binary=binary(), log="warn", flags=flags) as server:
        yield Demo(server.url, server.control_url)


@pytest.fixture(scope="session")
def demo() -> Iterator[Demo]:
    with running() as where:
        yield where


@pytest.fixture
def scripted() -> Iterator[Scripted]:
    with Scripted() as server:
        yield server


class Either:
    """Runs a method of `Client` or of `AsyncClient`, and returns its result; an iterator becomes a list."""

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def __call__(self, where: Demo | Scripted, method: str, /, *args: Any, **kwargs: Any) -> Any:
        options = {name[1:]: kwargs.pop(name) for name in list(kwargs) if name.startswith("_")}
        options = {"retries": 0, "pause": 0.0, **options}
        if self.kind == "blocking":
            with Client(where.data, where.control, **options) as client:
                made = getattr(client, method)(*args, **kwargs)
                return list(made) if hasattr(made, "__next__") else made
        return asyncio.run(self._run(where, method, args, kwargs, options))

    async def _run(self, where: Demo | Scripted, method: str, args: Any, kwargs: Any, options: Any) -> Any:
        async with AsyncClient(where.data, where.control, **options) as client:
            made = getattr(client, method)(*args, **kwargs)
            return [item async for item in made] if hasattr(made, "__anext__") else await made


@pytest.fixture(params=["blocking", "asyncio"])
def do(request: pytest.FixtureRequest) -> Either:
    """`do(where, method, ..., _retries=2)`: arguments with an underscore are those of the client's constructor."""
    return Either(request.param)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Records the pauses of the clients without sleeping."""
    made: list[float] = []
    wait: Callable[..., Any] = asyncio.sleep

    async def sleep(seconds: float) -> None:
        made.append(seconds)
        await wait(0)

    monkeypatch.setattr("tokentap._client.time.sleep", made.append)
    monkeypatch.setattr("tokentap._aio.asyncio.sleep", sleep)
    return made


@pytest.fixture
def session(request: pytest.FixtureRequest, demo: Demo) -> Iterator[str]:
    """A name that no other test uses."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:128]
    yield name
    with Client(demo.data, demo.control, retries=0) as client, suppress(Exception):
        client.delete(name)
