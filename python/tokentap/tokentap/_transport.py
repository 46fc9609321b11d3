# SPDX-License-Identifier: Apache-2.0
"""A pool of HTTP/1.1 connections to one server, shared by threads."""

from __future__ import annotations

import socket
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection

from ._address import Address
from ._call import Reply
from ._errors import ConnectionFailed, Interrupted
from ._timeouts import Timeouts

PIECE = 1 << 16

# tokentap closes a connection that was idle for 75 s.
IDLE_S = 60.0


class Connections:
    """Connections to an address; a request uses one alone and returns it at the end of its reply."""

    def __init__(self, address: Address, timeouts: Timeouts) -> None:
        self._kind = HTTPSConnection if address.scheme == "https" else HTTPConnection
        self._address = address
        self._timeouts = timeouts
        # append and pop are atomic; the latest is used first, so that surplus connections expire
        self._idle: deque[tuple[float, HTTPConnection]] = deque()
        # How often `close` was called; connections that were in use then are not kept.
        self._closed = 0

    def close(self) -> None:
        """Closes idle connections now, and connections in use when they are returned."""
        self._closed += 1
        while (kept := self._latest()) is not None:
            kept[1].close()

    def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """A request and its whole reply."""
        with self.open(method, target, headers, body) as exchange:
            return Reply(exchange.status, exchange.headers, b"".join(exchange))

    @contextmanager
    def open(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Iterator[Exchange]:
        """Sends a request and yields its reply; closes the connection if the block ends before the reply."""
        total = self._timeouts.total
        end = None if total is None else time.monotonic() + total
        closed = self._closed
        connection = self._connection()
        try:
            exchange = Exchange(connection, end)
            exchange.send(method, self._address.path + target, headers, body)
            yield exchange
        except BaseException:
            connection.close()
            raise
        if exchange.is_over and not exchange.response.will_close and closed == self._closed:
            self._idle.append((time.monotonic(), connection))
        else:
            connection.close()

    def _latest(self) -> tuple[float, HTTPConnection] | None:
        # another thread could pop between a test and the pop
        try:
            return self._idle.pop()
        except IndexError:
            return None

    def _connection(self) -> HTTPConnection:
        while (kept := self._latest()) is not None:
            since, connection = kept
            if time.monotonic() - since < IDLE_S and is_quiet(connection.sock):
                return connection
            connection.close()
        connection = self._kind(self._address.host, self._address.port, timeout=self._timeouts.connect)
        try:
            connection.connect()
        except OSError as error:
            raise ConnectionFailed(f"{self._address.base}: {error}", sent=False) from error
        return connection


class Exchange:
    """One request on a connection, and the pieces of its reply."""

    status: int
    headers: dict[str, str]
    response: HTTPResponse

    def __init__(self, connection: HTTPConnection, end: float | None) -> None:
        self._connection, self._end = connection, end
        # http.client drops the socket of a reply that ends with the connection, while the reply is still read
        self._socket = connection.sock
        self.is_over = False

    def send(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> None:
        """Sends the request and waits for the headers of the reply."""
        with self._failures():
            self._wait()
            try:
                self._connection.request(method, target, body, dict(headers))
            except (BrokenPipeError, ConnectionResetError) as error:
                self._wait()
                self.response = self._refusal(error)
            else:
                self._wait()
                self.response = self._connection.getresponse()
        self.status = self.response.status
        self.headers = {name.lower(): value for name, value in self.response.getheaders()}

    def _refusal(self, cut: OSError) -> HTTPResponse:
        """The reply of a server that did not read the whole request; the connection is closed after it."""
        try:
            response = self._connection.getresponse()
        except (ConnectionError, HTTPException):
            raise cut from None
        response.will_close = True
        return response

    def __iter__(self) -> Iterator[bytes]:
        while piece := self._piece():
            yield piece
        # before Python 3.13 read1 does not close a reply of known length after its last byte
        self.response.close()
        self.is_over = True

    def _piece(self) -> bytes:
        # from Python 3.13 on read1 closes a reply of known length after its last byte, and its socket if it is not kept
        if self.response.isclosed():
            return b""
        with self._failures():
            self._wait()
            piece = self.response.read1(PIECE)
            if not piece and self.response.length:
                # read1 does not report a truncated body
                raise Interrupted(f"the reply ended {self.response.length} bytes early", status=self.status)
            return piece

    def _wait(self) -> None:
        left = None if self._end is None else self._end - time.monotonic()
        if left is not None and left <= 0:
            raise TimeoutError("timed out")
        self._socket.settimeout(left)

    @contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise ConnectionFailed("the reply did not end within the timeout", sent=True) from error
        except (OSError, HTTPException) as error:
            raise Interrupted(f"the connection failed: {error!r}") from error


def is_quiet(connection: socket.socket) -> bool:
    """Whether an idle connection is still open and has received no unexpected bytes."""
    try:
        connection.settimeout(0)
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except ValueError:
        # TLS has no peek; a closed connection fails at its next use
        return True
    except OSError:
        return False
    return False
