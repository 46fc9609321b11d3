# SPDX-License-Identifier: Apache-2.0
"""A reverse proxy in front of an S3 server, which refuses, delays and breaks requests."""

from __future__ import annotations

import collections
import http.client
import random
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

FAULTS = ["slow_down", "internal_error", "not_forwarded", "answer_lost", "answer_replaced", "answer_cut", "delay"]
"""`slow_down` and `internal_error` answer 503 and 500 instead of the server. `not_forwarded` closes the connection. `answer_lost` and
`answer_replaced` close it, or answer 500, after the server has carried the request out. `answer_cut` sends half of the answer's body."""

HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "content-length"}


class FaultyS3:
    """Forwards requests to `endpoint`. A part of them, `rate`, has a fault."""

    def __init__(self, endpoint: str, rate: float, seed: int) -> None:
        self.rate, self.random, self.lock = rate, random.Random(seed), threading.Lock()
        self.injected: collections.Counter[str] = collections.Counter()
        address = urlsplit(endpoint).netloc
        faulty = self

        class Handler(BaseHTTPRequestHandler):
            """One connection of a client."""

            protocol_version = "HTTP/1.1"

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, TimeoutError):
                    self.close_connection = True

            def forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length") or 0))
                fault = faulty.next_fault(self.command)
                if fault == "delay":
                    time.sleep(faulty.random.uniform(0.2, 2))
                if fault == "slow_down":
                    return self.answer(503, [], error("SlowDown"))
                if fault == "internal_error":
                    return self.answer(500, [], error("InternalError"))
                if fault == "not_forwarded":
                    return self.close()
                upstream = http.client.HTTPConnection(address, timeout=60)
                headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_BY_HOP}
                upstream.request(self.command, self.path, body, headers | {"content-length": str(len(body))})
                reply = upstream.getresponse()
                answer = reply.read()
                upstream.close()
                if fault == "answer_lost":
                    return self.close()
                if fault == "answer_replaced":
                    return self.answer(500, [], error("InternalError"))
                length = reply.headers.get("content-length") if self.command == "HEAD" else str(len(answer))
                kept = [(name, value) for name, value in reply.getheaders() if name.lower() not in HOP_BY_HOP]
                if fault == "answer_cut":
                    answer = answer[: len(answer) // 2]
                    self.close_connection = True
                self.answer(reply.status, kept, answer, length)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = forward

            def answer(self, status: int, headers: list[tuple[str, str]], body: bytes, length: str | None = None) -> None:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.send_header("content-length", length or str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def close(self) -> None:
                self.close_connection = True

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.endpoint = f"http://127.0.0.1:{self.server.server_port}"

    def next_fault(self, method: str) -> str | None:
        """The fault of the next request."""
        with self.lock:
            if self.random.random() >= self.rate:
                return None
            fault = self.random.choice(FAULTS)
            self.injected[f"{method} {fault}"] += 1
            return fault

    def stop(self) -> None:
        """Ends it."""
        self.server.shutdown()
        self.server.server_close()


def error(code: str) -> bytes:
    """An error of S3."""
    return f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code><Message>injected</Message></Error>'.encode()
