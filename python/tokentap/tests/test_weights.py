# SPDX-License-Identifier: Apache-2.0
"""The calls for weights, pauses and adapters: against a demo, and against a scripted server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import PurePosixPath

import pytest
from conftest import Demo, Either, running
from scripted import Scripted, leave, reply

from tokentap import ConnectionFailed, HttpError, Interrupted, Throttled

SAMPLING = {"max_new_tokens": 4, "ignore_eos": True}


@pytest.fixture
def engine() -> Iterator[Demo]:
    """A demo whose weights the test changes."""
    with running() as where:
        yield where


def epochs(do: Either, demo: Demo, session: str) -> list[tuple[int, int]]:
    """The first and the last possible epoch of each span of the session's only path."""
    (path,) = do(demo, "trajectories", session)["trajectories"]
    return [(span["epoch"], span.get("until", span["epoch"])) for span in path["policy"]]


def test_an_update_of_several_calls_is_one_epoch(do: Either, engine: Demo) -> None:
    before = do(engine, "policy")["epoch"]
    assert do(engine, "begin_weight_update")["success"] is True
    do(engine, "update_weights_from_tensor", ["a"], weight_version=1, flush_cache=False)
    do(engine, "generate", "a", session="within", sampling_params=SAMPLING)
    shapes = [[2, 3]]
    do(engine, "update_weights_from_distributed", ["b"], ["bfloat16"], shapes, weight_version=1)
    assert do(engine, "policy")["updating"] is True
    do(engine, "end_weight_update")
    known = {"adapters": [], "epoch": before + 1, "version": None, "weight_version": "1", "updating": False}
    assert do(engine, "policy") == known
    do(engine, "generate", "a", session="after", sampling_params=SAMPLING)
    assert epochs(do, engine, "within") == [(before, before + 1)]
    assert epochs(do, engine, "after") == [(before + 1, before + 1)]


def test_an_update_from_disk_is_one_epoch(do: Either, engine: Demo) -> None:
    before = do(engine, "policy")["epoch"]
    do(engine, "pause_generation", "in_place")
    assert do(engine, "update_weights_from_disk", PurePosixPath("/weights/3"), weight_version="v3")["success"] is True
    do(engine, "continue_generation")
    assert (do(engine, "policy")["epoch"], do(engine, "policy")["weight_version"]) == (before + 1, "v3")
    do(engine, "update_weight_version", 4, abort_all_requests=False)
    assert do(engine, "policy")["weight_version"] == "4"
    with pytest.raises(HttpError) as raised:
        do(engine, "update_weights_from_disk", "/nonexistent")
    assert raised.value.status == 400
    with pytest.raises(HttpError, match="no update has begun"):
        do(engine, "update_weights_from_tensor", ["a"])


CALLS = [
    ("update_weights_from_disk", ("/w",), {"load_format": "dummy"}, {"model_path": "/w", "load_format": "dummy"}),
    ("update_weights_from_tensor", (["dA=="],), {}, {"serialized_named_tensors": ["dA=="]}),
    (
        "update_weights_from_distributed",
        (["w"], ["float32"], [(2, 3)]),
        {"weight_version": 7, "group_name": "g"},
        {"names": ["w"], "dtypes": ["float32"], "shapes": [[2, 3]], "weight_version": "7", "group_name": "g"},
    ),
    (
        "init_weights_update_group",
        ("127.0.0.1", 29500, 1, 2),
        {"backend": "gloo"},
        {"master_address": "127.0.0.1", "master_port": 29500, "rank_offset": 1, "world_size": 2, "backend": "gloo"},
    ),
    ("destroy_weights_update_group", ("g",), {}, {"group_name": "g"}),
    ("begin_weight_update", (), {"selector": "target"}, {"selector": "target"}),
    ("end_weight_update", (), {}, {}),
    ("update_weight_version", (8,), {}, {"new_version": "8", "abort_all_requests": True}),
    ("pause_generation", (), {}, {"mode": "abort"}),
    ("continue_generation", (), {"torch_empty_cache": False}, {"torch_empty_cache": False}),
    (
        "load_lora_adapter",
        ("a", PurePosixPath("/lora")),
        {"pinned": True},
        {"lora_name": "a", "lora_path": "/lora", "pinned": True},
    ),
    ("unload_lora_adapter", ("a",), {}, {"lora_name": "a"}),
]


@pytest.mark.parametrize(("method", "arguments", "fields", "body"), CALLS)
def test_a_call_has_the_members_of_the_engine(
    do: Either, scripted: Scripted, method: str, arguments: tuple[object, ...], fields: dict[str, object], body: object
) -> None:
    answer = {"success": True, "message": "Success"}
    scripted.script(reply(200, json.dumps(answer)))
    assert do(scripted, method, *arguments, **fields) == answer
    (asked,) = scripted.asked
    assert (asked.method, asked.path) == ("POST", f"/{method}")
    assert asked.json() == body
    # a failure, whatever the status
    for status in (200, 400):
        scripted.script(reply(status, '{"success":false,"message":"out of memory"}'))
        with pytest.raises(HttpError, match="out of memory") as raised:
            do(scripted, method, *arguments, **fields)
        assert raised.value.status == status


@pytest.mark.parametrize("method", ["begin_weight_update", "end_weight_update"])
def test_a_change_of_weights_is_retried_only_without_an_effect(do: Either, scripted: Scripted, method: str) -> None:
    done = reply(200, '{"success":true}')
    scripted.script(leave, done)
    with pytest.raises((Interrupted, ConnectionFailed)):
        do(scripted, method, _retries=2)
    assert len(scripted.asked) == 1
    scripted.script(reply(503, "wait"), done)
    assert do(scripted, method, _retries=2) == {"success": True}


def test_a_pause_is_retried(do: Either, scripted: Scripted) -> None:
    for method in ("pause_generation", "continue_generation"):
        scripted.script(leave, reply(200, '{"status":"ok"}'))
        assert do(scripted, method, _retries=1) == {"status": "ok"}
    scripted.script(reply(503, "wait"))
    with pytest.raises(Throttled):
        do(scripted, "pause_generation", _retries=1)


def test_tensors_are_a_list(do: Either, scripted: Scripted) -> None:
    with pytest.raises(ValueError, match="each rank"):
        do(scripted, "update_weights_from_tensor", "dA==")
