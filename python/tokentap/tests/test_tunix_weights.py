# SPDX-License-Identifier: Apache-2.0
"""Weight updates of the tunix rollout, against a scripted server."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from scripted import Scripted, Step, leave, reply, tear

from tokentap import Client, HttpError
from tokentap.tunix import WeightsNotUpdated
from tokentap.tunix._engine import logprob_fields
from tokentap.tunix._weights import publish


@pytest.fixture
def client(scripted: Scripted) -> Iterator[Client]:
    with Client(scripted.data, scripted.control, retries=0) as client:
        yield client


def test_the_policy_is_named_after_the_engine_loaded_the_weights(scripted: Scripted, client: Client) -> None:
    scripted.script(reply(200, json.dumps({"success": True, "message": ""})), reply(200, '{"epoch":12,"version":"3"}'))
    assert publish(client, PurePosixPath("/weights/3"), 3) == 12
    assert [(asked.method, asked.path, asked.json()) for asked in scripted.asked] == [
        ("POST", "/update_weights_from_disk", {"model_path": "/weights/3", "weight_version": "3"}),
        ("POST", "/v1/policy", {"version": 3}),
    ]


@pytest.mark.parametrize(
    ("status", "answer", "why"),
    [
        (404, {"detail": "Not Found"}, "sglang-jax has no route"),
        (405, {"detail": "Method Not Allowed"}, "sglang-jax has no route"),
        (400, {"success": False, "message": "no weights at '/w'"}, "refused to load.*no weights at '/w'"),
        (200, {"success": False, "message": "no weights at '/w'"}, "refused to load.*no weights at '/w'"),
        (200, {}, "refused to load"),
        (200, ["?"], "unknown whether"),
        (401, {"error": "Unauthorized"}, "control_token"),
        (403, {"error": "Forbidden"}, "control_token"),
        (500, {"message": "out of memory"}, "refused to load.*out of memory"),
    ],
)
def test_the_policy_is_not_named_if_the_engine_refuses(
    scripted: Scripted, client: Client, status: int, answer: object, why: str
) -> None:
    scripted.script(reply(status, json.dumps(answer)), reply(200, '{"epoch":1}'))
    with pytest.raises(WeightsNotUpdated, match=why):
        publish(client, "/w", 1)
    assert [asked.path for asked in scripted.asked] == ["/update_weights_from_disk"]


@pytest.mark.parametrize("step", [leave, reply(200, "{"), reply(502, "gone"), tear(b"{", 100)])
def test_a_lost_reply_leaves_the_weights_unknown(scripted: Scripted, client: Client, step: Step) -> None:
    scripted.script(step, reply(200, '{"epoch":1}'))
    with pytest.raises(WeightsNotUpdated, match="unknown whether the engine loaded them; update again"):
        publish(client, "/w", 1)
    assert [asked.path for asked in scripted.asked] == ["/update_weights_from_disk"]


def test_a_failed_set_policy_says_that_the_engine_loaded_the_weights(scripted: Scripted, client: Client) -> None:
    loaded = reply(200, '{"success":true}')
    scripted.script(loaded, reply(500, "oops"), loaded, reply(200, '{"epoch":3}'))
    with pytest.raises(WeightsNotUpdated, match=r"engine loaded them, but tokentap has not recorded.*oops"):
        publish(client, "/w", 1)
    assert publish(client, "/w", 1) == 3, "the same version again"
    assert scripted.asked[2].json() == {"model_path": "/w", "weight_version": "1"}


def test_a_refused_connection_says_that_the_engine_got_nothing(scripted: Scripted) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with Client(address, address, retries=0) as client, pytest.raises(WeightsNotUpdated, match="did not get"):
        publish(client, "/w", 1)


@pytest.mark.parametrize(("step", "count"), [(leave, 1), (reply(503, "wait"), 3), (reply(500, "?"), 1)])
def test_a_load_that_may_have_happened_is_not_retried(scripted: Scripted, step: Step, count: int) -> None:
    scripted.script(step)
    client = Client(scripted.data, scripted.control, retries=2, pause=0)
    with client, pytest.raises(WeightsNotUpdated):
        publish(client, "/w", 1)
    assert len(scripted.asked) == count


def test_sglang_jax_gets_top_logprobs_num(scripted: Scripted, client: Client) -> None:
    scripted.script(reply(404, '{"detail":"Not Found"}'))
    assert logprob_fields(client) == {"return_logprob": True, "top_logprobs_num": 1}
    scripted.script(reply(200, '{"model_path":"m","weight_version":"default"}'))
    assert logprob_fields(client) == {"return_logprob": True}
    assert [asked.path for asked in scripted.asked] == ["/model_info"]
    scripted.script(reply(500, "{}"))
    with pytest.raises(HttpError):
        logprob_fields(client)
