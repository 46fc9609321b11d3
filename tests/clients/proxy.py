# SPDX-License-Identifier: Apache-2.0
"""An HTTP proxy that refuses every request and records it: clients that honour HTTPS_PROXY cannot reach the network."""

from __future__ import annotations

import socketserver
import threading
from typing import Self


class Proxy:
    """Listens on 127.0.0.1 at a free port. `requests` are the first lines of what it received."""

    def __init__(self) -> None:
        self.requests: list[str] = []
        requests = self.requests

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                requests.append(self.rfile.readline(1000).decode(errors="replace").strip())

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args: object) -> None:
        self.server.shutdown()
        self.server.server_close()
