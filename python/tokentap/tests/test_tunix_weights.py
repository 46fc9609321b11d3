"""Weight updates of the tunix rollout, against a server that answers as it is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from threading import Thread

import pytest

from tokentap import Client, HttpError
from tokentap.tunix import WeightsNotUpdated
from tokentap.tunix.engine import logprob_fields
from tokentap.tunix.weights import publish


class Scripted(ThreadingHTTPServer):
    """Answers a path with a status and a body, 404 where there is none, and keeps what it was asked."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers: dict[str, tuple[int, object]] = {}
        self.asked: list[tuple[str, object]] = []


class Answer(BaseHTTPRequestHandler):
    def answer(self) -> None:
        assert isinstance(self.server, Scripted)
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        self.server.asked.append((self.path, json.loads(body) if body else None))
        status, said = self.server.answers.get(self.path, (404, {"detail": "Not Found"}))
        payload = json.dumps(said).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    do_GET = do_POST = answer

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: pytest shows what fails."""


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def client(server: Scripted) -> Iterator[Client]:
    url = f"http://127.0.0.1:{server.server_port}"
    with Client(url, url, retries=0) as client:
        yield client


def test_the_engine_loads_and_then_the_policy_is_named(server: Scripted, client: Client) -> None:
    server.answers = {
        "/update_weights_from_disk": (200, {"success": True, "message": ""}),
        "/v1/policy": (200, {"epoch": 12, "version": "3"}),
    }
    assert publish(client, PurePosixPath("/weights/3"), 3) == 12
    assert server.asked == [
        ("/update_weights_from_disk", {"model_path": "/weights/3", "weight_version": "3"}),
        ("/v1/policy", {"version": 3}),
    ]


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ((404, {"detail": "Not Found"}), "sglang-jax has no route"),
        ((405, {"detail": "Method Not Allowed"}), "sglang-jax has no route"),
        ((400, {"success": False, "message": "no weights at '/w'"}), "refused to load.*no weights at '/w'"),
        ((500, {"message": "out of memory"}), "refused to load.*out of memory"),
    ],
)
def test_a_refusal_names_no_policy(server: Scripted, client: Client, answer: tuple[int, object], why: str) -> None:
    server.answers = {"/update_weights_from_disk": answer, "/v1/policy": (200, {"epoch": 1})}
    with pytest.raises(WeightsNotUpdated, match=why):
        publish(client, "/w", 1)
    assert [path for path, _ in server.asked] == ["/update_weights_from_disk"]


def test_sglang_jax_is_asked_with_a_k(server: Scripted, client: Client) -> None:
    assert logprob_fields(client) == {"return_logprob": True, "top_logprobs_num": 1}
    server.answers = {"/model_info": (200, {"model_path": "m", "weight_version": "default"})}
    assert logprob_fields(client) == {"return_logprob": True}
    server.answers = {"/model_info": (500, {})}
    with pytest.raises(HttpError):
        logprob_fields(client)
