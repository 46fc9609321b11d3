# SPDX-License-Identifier: Apache-2.0
"""The arguments of a request, and the body that arrives."""

from __future__ import annotations

import json
import socket
import threading
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from conftest import Demo, Either
from scripted import GOOD, Scripted, generated, reply

from tokentap import Client, HttpError


@pytest.mark.parametrize(
    "ids", [np.array([1, 2, 3]), list(np.array([1, 2, 3])), range(1, 4), (1, 2, 3), np.array([1, 2, 3], np.int32)]
)
def test_ids_of_one_prompt(do: Either, scripted: Scripted, ids: Any) -> None:
    scripted.script(GOOD)
    sampling = MappingProxyType({"temperature": np.float32(0.5), "stop_token_ids": np.array([7])})
    assert do(scripted, "generate", input_ids=ids, sampling_params=sampling).output_ids == [1, 2]
    body = scripted.asked[0].json()
    assert body["input_ids"] == [1, 2, 3]
    assert body["sampling_params"] == {"temperature": 0.5, "stop_token_ids": [7]}


@pytest.mark.parametrize(
    "ids", [np.array([[1, 2], [3, 4]]), [np.array([1, 2]), np.array([3, 4])], [range(1, 3), (3, 4)]]
)
def test_ids_of_several_prompts(do: Either, scripted: Scripted, ids: Any) -> None:
    scripted.script(reply(200, json.dumps([generated([5]), generated([6])])))
    assert [one.output_ids for one in do(scripted, "generate_batch", input_ids=ids)] == [[5], [6]]
    assert scripted.asked[0].json()["input_ids"] == [[1, 2], [3, 4]]
    assert "rid" not in scripted.asked[0].json()
    with pytest.raises(ValueError, match="generate_batch"):
        do(scripted, "generate", input_ids=ids)


def test_ids_are_searched_in_the_form_of_the_route(do: Either, scripted: Scripted) -> None:
    scripted.script(reply(200, '{"matches":[{"turn":0}],"next":null}'))
    assert do(scripted, "search", np.array([299, 467]), case=True) == [{"turn": 0}]
    assert scripted.asked[0].path == "/v1/search?q=299%2C467&case=true"


def test_a_space_in_a_query_is_percent_encoded(do: Either, scripted: Scripted) -> None:
    scripted.script(reply(200, '{"matches":[],"sessions":[],"next":null}'))
    do(scripted, "search", "the sea + 1/2")
    do(scripted, "sessions", where="task=big bench")
    assert [asked.path for asked in scripted.asked] == [
        "/v1/search?q=the%20sea%20%2B%201%2F2",
        "/v1/sessions?where=task%3Dbig%20bench",
    ]


def test_a_text_with_a_space_is_found(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", "The lamp", session=session, tags={"task": f"{session} bench"}, max_new_tokens=1)
    assert [found["session"] for found in do(demo, "sessions", where=f"task={session} bench")] == [session]
    matches = do(demo, "search", "the lamp", where=f"task={session} bench")
    assert {match["session"] for match in matches} == {session}


def test_groups_are_read_page_by_page(do: Either, scripted: Scripted) -> None:
    pages = [{"groups": [{"turn": 0}, {"turn": 1}], "next": "p/2"}, {"groups": [{"turn": 2}], "next": None}]
    scripted.script(*(reply(200, json.dumps(page)) for page in pages))
    found = do(scripted, "groups", where="reward<1", sort="-std")
    assert [group["turn"] for group in found] == [0, 1, 2]
    first = "/v1/groups?by=step&where=reward%3C1&sort=-std"
    assert [asked.path for asked in scripted.asked] == [first, f"{first}&after=p%2F2"]


def test_the_highest_entropies_of_all_replies_are_merged(do: Either, scripted: Scripted) -> None:
    replies = [[0.5, 0.25], [2.0, 1.0], [0.75, 0.1]]
    pages = [
        {"tokens": [{"entropy": nats} for nats in entropies], "next": following}
        for entropies, following in zip(replies, ["1", "2", None], strict=True)
    ]
    scripted.script(*(reply(200, json.dumps(page)) for page in pages))
    assert [token["entropy"] for token in do(scripted, "high_entropy_tokens", limit=3)] == [2.0, 1.0, 0.75]
    first = "/v1/high-entropy-tokens?limit=3"
    assert [asked.path for asked in scripted.asked] == [first, f"{first}&after=1", f"{first}&after=2"]


def test_an_empty_batch_is_refused(do: Either, scripted: Scripted) -> None:
    with pytest.raises(ValueError, match="at least one prompt"):
        do(scripted, "generate_batch", [])
    assert not scripted.asked


@pytest.mark.parametrize("value", [np.float32(0.5), np.float64(0.5), np.array(0.5)])
def test_a_reward_may_be_a_scalar_of_numpy(do: Either, demo: Demo, session: str, value: Any) -> None:
    do(demo, "generate", "a", session=session, sampling_params={"max_new_tokens": 1})
    assert do(demo, "reward", session, value)
    assert do(demo, "trajectories", session)["trajectories"][0]["reward"] == 0.5


def test_an_unpaired_surrogate_is_sent(do: Either, scripted: Scripted) -> None:
    scripted.script(GOOD)
    do(scripted, "generate", "a\ud83d é")
    assert scripted.asked[0].json()["text"] == "a\ud83d é"


def test_a_value_that_json_cannot_hold_raises_type_error(do: Either, scripted: Scripted) -> None:
    with pytest.raises(TypeError, match="object in a request"):
        do(scripted, "generate", "a", sampling_params={"x": object()})


def test_a_single_session_name_raises_value_error(do: Either, scripted: Scripted) -> None:
    with pytest.raises(ValueError, match="not the name 'run-1'"):
        do(scripted, "samples", "run-1")


def test_a_413_that_arrives_during_the_body_is_read() -> None:
    """The server answers after the headers, closes its side, and stops reading."""
    body = b"HTTP/1.1 413 Payload Too Large\r\ncontent-length: 3\r\n\r\nbig"

    def refuse(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer:
            peer.recv(1024)
            peer.sendall(body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=refuse, args=(listener,))
        thread.start()
        with Client(f"http://127.0.0.1:{listener.getsockname()[1]}", None, retries=0) as client:
            with pytest.raises(HttpError) as raised:
                client.generate("a" * 30_000_000)
            assert not client._data._idle, "the rest of the body was never sent"
        thread.join()
    assert (raised.value.status, raised.value.body) == (413, "big")


def test_a_body_above_the_limit_of_tokentap(do: Either, demo: Demo) -> None:
    with pytest.raises(HttpError) as raised:
        do(demo, "generate", "a" * 70_000_000)
    assert raised.value.status == 413
