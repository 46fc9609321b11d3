"""Serves a recorded exposition at /metrics. Its counters grow with every scrape, as they do on an engine that works."""

import itertools
import re
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

LINES = Path(sys.argv[1]).read_text().splitlines()
COUNTED = re.compile(r"^(\w[\w:]*_(?:total|bucket|sum|count)(?:\{.*\})?) (\S+)")
SCRAPES = itertools.count(1)


class Recorded(BaseHTTPRequestHandler):
    """What the engine said, times the number of the scrape."""

    def do_GET(self) -> None:
        if self.path.rstrip("/") != "/metrics":
            self.send_error(404)
            return
        scrape = next(SCRAPES)
        grown = (COUNTED.sub(lambda m: f"{m[1]} {float(m[2]) * scrape}", line) for line in LINES)
        body = ("\n".join(grown) + "\n").encode()
        self.send_response(200)
        self.send_header("content-type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Recorded)
print(f"127.0.0.1:{server.server_port}", flush=True)
server.serve_forever()
