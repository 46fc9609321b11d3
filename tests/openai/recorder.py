# SPDX-License-Identifier: Apache-2.0
"""A proxy that records requests and replies, and drops or rejects those that a test chooses."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


@dataclass
class Exchange:
    """A request, and the received part of its reply."""

    path: str
    headers: dict[str, str]
    asked: bytes
    status: int = 0
    answered: bytearray = field(default_factory=bytearray)

    @property
    def request(self) -> dict[str, Any]:
        return json.loads(self.asked)

    @property
    def prompt(self) -> list[int]:
        return self.request["input_ids"]

    def objects(self) -> list[dict[str, Any]]:
        """The reply of the engine: the samples of a complete reply, or the events of a stream."""
        text = bytes(self.answered)
        if not text.startswith(b"data: "):
            read = json.loads(text)
            return read if isinstance(read, list) else [read]
        frames = [frame[6:] for frame in text.split(b"\n\n") if frame.startswith(b"data: {")]
        return [json.loads(frame) for frame in frames]

    def sampled(self, index: int = 0) -> list[int]:
        """The ids that the engine sampled, each once, in either stream mode."""
        ids: list[int] = []
        objects = self.objects()
        if not self.answered.startswith(b"data: "):
            return objects[index]["output_ids"]
        for event in objects:
            if event.get("index", 0) != index:
                continue
            # under load 0.5.6 --stream-output merges events and drops ids from output_ids; the logprobs are complete
            rows = event["meta_info"].get("output_token_logprobs")
            new = [row[1] for row in rows] if rows else event["output_ids"]
            counted = event["meta_info"]["completion_tokens"]
            # a cumulative list has all items, an incremental list only the new ones
            ids = new if len(new) == counted else ids + new
        return ids


class Recorder:
    """Listens on a free port; `address` is its address. `fault` is called with each request and returns None, "lose" (forward the
    request, then close the connection without a reply), or a status to reply with instead of forwarding."""

    def __init__(self, upstream: str) -> None:
        self.upstream = upstream
        self.exchanges: list[Exchange] = []
        self.fault: Callable[[Exchange], str | int | None] = lambda exchange: None
        handler = type("Bound", (Handler,), {"recorder": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.address = f"127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, path: str) -> list[Exchange]:
        """The calls of a path, without those of tokentap's probe, whose prompts are short."""
        asked = [one for one in list(self.exchanges) if one.path == path]
        return [one for one in asked if len(one.request.get("input_ids") or [0] * 99) > 8]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # a head and its body are two writes, which Nagle's algorithm would delay
    disable_nagle_algorithm = True
    recorder: Recorder

    def log_message(self, *args: Any) -> None:
        pass

    def forward(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in self.headers.items()}
        exchange = Exchange(self.path, headers, body)
        if body:
            self.recorder.exchanges.append(exchange)
        fault = self.recorder.fault(exchange)
        if isinstance(fault, int):
            self.whole(fault, [], json.dumps({"error": {"message": "not now"}}).encode())
            return
        # a generation that waits for a paused engine can take long
        upstream = http.client.HTTPConnection(self.recorder.upstream, timeout=600)
        try:
            upstream.connect()
            upstream.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            kept = {name: value for name, value in headers.items() if name not in HOP}
            upstream.request(self.command, self.path, body or None, kept)
            if fault == "lose":
                self.close_connection = True
                return
            reply = upstream.getresponse()
            exchange.status = reply.status
            self.pass_on(reply, exchange)
        except OSError:
            # the client or the upstream has disconnected
            self.close_connection = True
        finally:
            upstream.close()

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = forward

    def whole(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def pass_on(self, reply: http.client.HTTPResponse, exchange: Exchange) -> None:
        headers = [(name, value) for name, value in reply.getheaders() if name.lower() not in HOP]
        if "text/event-stream" not in (reply.getheader("content-type") or ""):
            exchange.answered += reply.read()
            self.whole(reply.status, headers, bytes(exchange.answered))
            return
        self.send_response_only(reply.status)
        for name, value in [*headers, ("transfer-encoding", "chunked")]:
            self.send_header(name, value)
        self.end_headers()
        while data := reply.read1(65536):
            exchange.answered += data
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
