# SPDX-License-Identifier: Apache-2.0
"""A server that answers each request with the next step of a script, and records the requests."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

# Answers one request; the connection is closed after it.
Step = Callable[["Handler"], None]


@dataclass(frozen=True)
class Asked:
    """A recorded request."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Handler(BaseHTTPRequestHandler):
    """Takes the next step of the script; the last one is repeated."""

    protocol_version = "HTTP/1.1"
    server: Server

    def _answer(self) -> None:
        length = int(self.headers.get("content-length") or 0)
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked, steps = self.server.asked, self.server.steps
        asked.append(Asked(self.command, self.path, headers, self.rfile.read(length)))
        self.close_connection = True
        steps[min(len(asked), len(steps)) - 1](self)

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    steps: list[Step]
    asked: list[Asked]


@dataclass
class Scripted:
    """The server; `data` and `control` are the same address."""

    steps: list[Step] = field(default_factory=list)
    released: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Scripted:
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.steps, self._server.asked = self.steps, []
        self.data = self.control = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.released.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def asked(self) -> list[Asked]:
        return self._server.asked

    def script(self, *steps: Step) -> None:
        self.steps[:] = steps
        self.asked.clear()

    def hang(self, handler: Handler) -> None:
        """Sends nothing until the test ends."""
        self.released.wait(60)


def reply(status: int, body: bytes | str, kind: str = "application/json") -> Step:
    """A complete reply."""
    data = body.encode() if isinstance(body, str) else body

    def step(handler: Handler) -> None:
        handler.send_response(status)
        handler.send_header("content-type", kind)
        handler.send_header("connection", "close")
        handler.send_header("content-length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return step


def tear(body: bytes, length: int | None) -> Step:
    """A reply that ends early: of a known length, or in chunks without the last one."""

    def step(handler: Handler) -> None:
        handler.send_response(200)
        if length is None:
            handler.send_header("transfer-encoding", "chunked")
            body_ = b"%x\r\n%s\r\n" % (len(body), body) if body else b""
        else:
            handler.send_header("content-length", str(length))
            body_ = body
        handler.end_headers()
        handler.wfile.write(body_)

    return step


def leave(handler: Handler) -> None:
    """Closes the connection without a reply."""


def events(*payloads: object, done: bool = True) -> Step:
    """An event stream."""
    text = "".join(f"data: {json.dumps(one)}\n\n" for one in payloads) + ("data: [DONE]\n\n" if done else "")
    return reply(200, text, "text/event-stream")


def generated(ids: list[int], text: str = "x", finish: str | None = "stop", **meta: object) -> dict[str, Any]:
    """A generation in SGLang's format."""
    reason = finish and {"type": finish}
    meta_info = {"id": "r", "finish_reason": reason, "completion_tokens": len(ids), **meta}
    return {"text": text, "output_ids": ids, "meta_info": meta_info}


GOOD = reply(200, json.dumps(generated([1, 2])))
