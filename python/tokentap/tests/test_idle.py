"""Kept connections: who takes them, and until when."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest

from tokentap.address import Address
from tokentap.transport import IDLE_S, Connections


class Closed(HTTPConnection):
    """A connection that is opened without a server."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 1)

    def connect(self) -> None:
        pass


@pytest.fixture
def often() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_that_empty_the_pool_at_once(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(Address.of("http://127.0.0.1:1"), 1, 1)
    monkeypatch.setattr(connections, "_kind", lambda *_, **__: Closed())
    failures: list[Exception] = []
    begin = threading.Barrier(16)

    def take() -> None:
        begin.wait()
        for _ in range(1500):
            for _ in range(3):
                connections._idle.append((-2 * IDLE_S, Closed()))
            try:
                connections._connection()
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=take) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
