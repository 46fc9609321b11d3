# SPDX-License-Identifier: Apache-2.0
"""Replies that are lost between tokentap and the client: the retry makes no second sample."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

import pytest
from conftest import Demo, Either

from tokentap import Interrupted

SAMPLING = {"max_new_tokens": 3000, "ignore_eos": True}


class Tearing:
    """Forwards bytes between clients and a server, and drops the reply of the first `tears` connections.

    It closes such a connection after the request and `after` bytes of the reply. tokentap then sees its client
    disconnect before the last byte of the reply.
    """

    def __init__(self, server: str, tears: int, after: int) -> None:
        host, port = server.removeprefix("http://").split(":")
        self._server = (host, int(port))
        self._tears, self._after = tears, after
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.data = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                self.connections += 1
                torn = self.connections <= self._tears
                threading.Thread(target=self._serve, args=(client, torn), daemon=True).start()

    def _serve(self, client: socket.socket, torn: bool) -> None:
        with client, socket.socket() as server:
            if torn:
                # a small buffer, so that the reply stays in tokentap
                server.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            server.connect(self._server)
            server.sendall(request(client))
            if torn:
                client.sendall(server.recv(self._after) if self._after else b"")
                return
            threading.Thread(target=copy, args=(client, server), daemon=True).start()
            copy(server, client)


def copy(source: socket.socket, sink: socket.socket) -> None:
    """Forwards bytes until one side ends, and then ends the other."""
    with suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


def request(client: socket.socket) -> bytes:
    """The bytes of one request."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
    while len(body) < length:
        body += client.recv(65536)
    return head + b"\r\n\r\n" + body


@pytest.mark.parametrize("after", [0, 1, 300])
def test_a_retry_after_a_lost_reply_makes_no_second_sample(do: Either, demo: Demo, session: str, after: int) -> None:
    proxy = Tearing(demo.data, tears=2, after=after)
    # a reply of megabytes, larger than the buffers in between
    rows = {"return_logprob": True, "top_logprobs_num": 50}
    try:
        where = Demo(proxy.data, demo.control)
        made = do(
            where,
            "generate",
            input_ids=[299, 467],
            session=session,
            sampling_params=SAMPLING,
            _retries=60,
            _pause=0.05,
            **rows,
        )
    finally:
        proxy.close()
    # the engine refuses a rid that it is still aborting, so there may be more attempts
    assert proxy.connections >= 3
    paths = do(demo, "trajectories", session)["trajectories"]
    trained = [path for path in paths if 1 in path["loss_mask"]]
    assert [path["token_ids"] for path in trained] == [[299, 467, *made.output_ids]]
    assert trained[0]["entropy"][2:] == made.entropy
    assert do(demo, "samples", [session], "strands").rows == 1


def test_without_retries_a_lost_reply_raises(do: Either, demo: Demo, session: str) -> None:
    proxy = Tearing(demo.data, tears=1, after=0)
    try:
        with pytest.raises(Interrupted):
            do(Demo(proxy.data, demo.control), "generate", "a", session=session, sampling_params=SAMPLING)
    finally:
        proxy.close()
