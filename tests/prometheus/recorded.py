# SPDX-License-Identifier: Apache-2.0
"""A fake engine that replays the recorded replies of a real one from a folder.

The counters of its /metrics grow with every scrape, as in a running engine. A chat gets its complete reply. A stream of /generate
is truncated after half of its bytes, as by an engine that is killed.
"""

import itertools
import re
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

FOLDER = Path(sys.argv[1])
COUNTED = re.compile(r"^(\w[\w:]*_(?:total|bucket|sum|count)(?:\{.*\})?) (\S+)")
SCRAPES = itertools.count(1)


def recorded_reply(case: str) -> bytes:
    return (FOLDER / case / "response.body").read_bytes()


def growing_metrics() -> bytes:
    """The recorded metrics, with the counters multiplied by the number of the scrape."""
    scrape = next(SCRAPES)
    lines = recorded_reply("info-metrics").decode().splitlines()
    return "".join(COUNTED.sub(lambda m: f"{m[1]} {float(m[2]) * scrape}", line) + "\n" for line in lines).encode()


class Recorded(BaseHTTPRequestHandler):
    """Closes the connection after each request."""

    def answer(self, kind: str, body: bytes, share: float = 1) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: int(share * len(body))])

    def do_GET(self) -> None:
        if self.path.rstrip("/") == "/metrics":
            self.answer("text/plain; version=0.0.4; charset=utf-8", growing_metrics())
        else:
            self.send_error(404)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        match self.path:
            case "/v1/chat/completions":
                self.answer("application/json", recorded_reply("chat-plain"))
            case "/generate":
                self.answer("text/event-stream; charset=utf-8", recorded_reply("stream-plain"), share=0.5)
            case _:
                self.send_error(404)

    def log_message(self, *_: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Recorded)
print(f"127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
