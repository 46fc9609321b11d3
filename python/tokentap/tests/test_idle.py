# SPDX-License-Identifier: Apache-2.0
"""The reuse of idle connections."""

from __future__ import annotations

import socket
import sys
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection

import pytest
from conftest import Demo

from tokentap import Client
from tokentap._address import Address
from tokentap._timeouts import Timeouts
from tokentap._transport import IDLE_S, Connections


class Closed(HTTPConnection):
    """A connection that is opened without a server."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1", 1)

    def connect(self) -> None:
        pass


@pytest.fixture
def often() -> Iterator[None]:
    """Threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def test_threads_can_empty_the_pool_at_once(often: None, monkeypatch: pytest.MonkeyPatch) -> None:
    connections = Connections(Address.of("http://127.0.0.1:1"), Timeouts(1, 1))
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


@pytest.mark.parametrize(("age", "taken"), [(IDLE_S - 5, True), (IDLE_S + 1, False)])
def test_an_old_open_connection_is_not_reused(age: float, taken: bool) -> None:
    connections = Connections(Address.of("http://127.0.0.1:1"), Timeouts(1, 1))
    connections._kind = lambda *_, **__: Closed()  # type: ignore[assignment]
    mine, other = socket.socketpair()
    with mine, other:
        old = Closed()
        old.sock = mine
        connections._idle.append((time.monotonic() - age, old))
        assert (connections._connection() is old) == taken
        assert (mine.fileno() == -1) == (not taken), "an old connection is closed"


def test_a_connection_in_use_during_close_is_not_kept(demo: Demo) -> None:
    client = Client(demo.data, None, retries=0)
    stream = client.stream("a", sampling_params={"max_new_tokens": 3, "ignore_eos": True})
    next(stream)
    client.close()
    list(stream)
    assert not client._data._idle
    client.generate("a", sampling_params={"max_new_tokens": 1})
    assert client._data._idle, "the connection may be reused"
    client.close()
