# SPDX-License-Identifier: Apache-2.0
"""The feeder of TransferQueue with a queue in memory; tests/trainers/transferqueue uses the real one."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from conftest import Demo, running
from scripted import Scripted, reply

from tokentap import Client, HttpError, Throttled
from tokentap._retry import MANY
from tokentap.transfer_queue import _CURSORS, Feeder, _Fields, _key_of, _place_of, _refusal, _row_of, _steps, _Tag

SAMPLING = {"max_new_tokens": 4, "ignore_eos": True}


class Memory:
    """A queue in memory; `puts` lists the keys in the order of their puts, and `places` without the row keys."""

    def __init__(self) -> None:
        self.rows: dict[str, _Fields] = {}
        self.all_tags: dict[str, dict[str, _Tag]] = {}
        self.puts: list[str] = []
        self.fails_at_cursor = False

    def put(self, partition: str, keys: list[str], rows: list[_Fields], tags: list[_Tag]) -> None:
        assert {frozenset(row) for row in rows} == {frozenset(rows[0])}
        self.puts += keys
        self.rows |= zip(keys, rows, strict=True)
        for key, tag in zip(keys, tags, strict=True):
            self.all_tags.setdefault(partition, {}).setdefault(key, {}).update(tag)

    def tag(self, partition: str, key: str, tag: _Tag) -> None:
        if partition == _CURSORS and self.fails_at_cursor:
            raise ConnectionError("the process ends here")
        self.all_tags.setdefault(partition, {}).setdefault(key, {}).update(tag)

    def tags(self, partition: str) -> dict[str, _Tag]:
        return self.all_tags.get(partition, {})

    @property
    def places(self) -> list[str]:
        return [_place_of(key) for key in self.puts]


class Pages:
    """A client whose finished paths are these pages; each call of `send` reads one."""

    def __init__(self, *pages: list[dict[str, Any]]) -> None:
        self.pages = list(pages)

    def _for_trainers(self) -> Pages:
        return self

    def _send(self, call: Any) -> list[dict[str, Any]]:
        return self.pages.pop(0) if self.pages else []


@pytest.mark.parametrize(("options", "attempts"), [({}, 61), ({"retries": 1}, 2), ({"retries": 3}, 4)])
def test_a_feeder_outlasts_a_restart_unless_its_client_sets_retries(
    scripted: Scripted, pauses: list[float], options: dict[str, Any], attempts: int
) -> None:
    scripted.script(reply(503, "wait"))
    with Client(scripted.data, scripted.control, **options) as client:
        with pytest.raises(Throttled):
            Feeder(client, "here", queue=Memory()).feed()
        assert len(scripted.asked) == attempts
        assert sum(pauses) == attempts - 1, "seconds"
        scripted.asked.clear()
        with pytest.raises(Throttled):
            client.policy()
    assert len(scripted.asked) == 1 + options.get("retries", 3), "the client itself keeps its own number"


def test_the_client_of_an_adapter_has_the_same_connections(demo: Demo) -> None:
    with Client(demo.data, demo.control) as client:
        patient = client._for_trainers()
        patient.policy()
        assert client._control is not None
        assert len(client._control._idle) == 1
        assert pickle.loads(pickle.dumps(patient))._retry.retries == MANY
    with Client(demo.data, demo.control, retries=3) as client:
        assert client._for_trainers() is client


@pytest.fixture
def own() -> Iterator[Demo]:
    with running() as where:
        yield where


@pytest.fixture
def client(own: Demo) -> Iterator[Client]:
    with Client(own.data, own.control, retries=0) as one:
        yield one


def finish(client: Client, session: str, reward: Any = None) -> None:
    client.generate(input_ids=[299, 467], session=session, sampling_params=SAMPLING, return_logprob=True)
    if reward is not None:
        client.reward(session, reward)
    client.freeze(session)


def test_rows_hold_what_was_recorded(client: Client) -> None:
    client.set_policy("7")
    finish(client, "g1_0", 0.5)
    finish(client, "g1_1")
    queue = Memory()
    assert Feeder(client, "here", queue=queue).feed().put == 2
    assert queue.places == ["g1_0.1_0", "g1_1.1_0"]
    first, second = queue.puts
    (path,) = client.trajectories("g1_0")["trajectories"]
    row, tag = queue.rows[first], queue.tags("train")[first]
    assert (row["uid"], row["prompts"], row["prompts"] + row["responses"]) == ("g1", [299, 467], path["token_ids"])
    assert row["rollout_entropy"] == path["entropy"][2:]
    assert row["rollout_log_probs"] == path["logprobs"][2:]
    assert row["rm_scores"] == [0.0, 0.0, 0.0, 0.5]
    assert "rm_scores" not in queue.rows[second]
    exported = client.samples(["g1_0", "g1_1"], "jsonl").json()
    assert [row["row_key"] for row in exported] == [tag["tokentap_row_key"] for tag in queue.tags("train").values()]
    assert (tag["status"], tag["min_global_steps"], tag["max_global_steps"], tag["seq_len"]) == ("success", 7, 7, 6)


def test_a_restart_before_the_cursor_puts_nothing_again(client: Client) -> None:
    queue = Memory()
    finish(client, "g_0")
    queue.fails_at_cursor = True
    with pytest.raises(ConnectionError):
        Feeder(client, "here", queue=queue).feed()
    queue.fails_at_cursor = False
    # what a trainer wrote meanwhile
    queue.rows[queue.puts[0]]["response_mask"] = [0, 0, 0, 0]
    finish(client, "g_1")
    fed = Feeder(client, "here", queue=queue).feed()
    assert (fed.put, fed.present) == (1, 1)
    assert queue.places == ["g_0.1_0", "g_1.1_0"]
    assert queue.rows[queue.puts[0]]["response_mask"] == [0, 0, 0, 0]
    fed = Feeder(client, "here", queue=queue).feed()
    assert (fed.put, fed.present) == (0, 0)


def test_small_pages_commit_each_cursor(client: Client) -> None:
    queue = Memory()
    for at in range(5):
        finish(client, f"g_{at}")
    assert Feeder(client, "here", limit=2, queue=queue).feed().put == 5
    assert len(queue.puts) == 5
    cursor = queue.tags(_CURSORS)["here"]["cursor"]
    assert list(client.finished(cursor)) == []


def test_a_reused_session_name_is_counted_and_later_paths_are_put(client: Client, caplog: Any) -> None:
    queue = Memory()
    finish(client, "g_0")
    feeder = Feeder(client, "here", queue=queue)
    feeder.feed()
    client.delete("g_0")
    finish(client, "g_0")
    finish(client, "g_1")
    with caplog.at_level(logging.WARNING, "tokentap"):
        fed = feeder.feed()
    assert (fed.put, fed.conflicts) == (2, 1)
    assert queue.places == ["g_0.1_0", "g_0.1_0", "g_1.1_0"]
    assert len(set(queue.puts)) == 3
    assert "another path at g_0.1_0" in caplog.text


def test_a_failover_that_renumbers_turns_neither_blocks_nor_repeats() -> None:
    queue = Memory()
    first, second, third = (f"{at:032x}" for at in (7, 8, 9))
    Feeder(
        Pages([a_path(leaf=0, row_key=first), a_path(leaf=1, row_key=second, cursor="1")]), "here", queue=queue
    ).feed()
    # the second path has the number 2 now, a new one has its number, and the stream lists both
    healed = [a_path(leaf=1, row_key=third), a_path(leaf=2, row_key=second), a_path(leaf=2, row_key=second, cursor="2")]
    later = [a_path(session="g_1", row_key="f" * 32, cursor="3")]
    fed = Feeder(Pages(healed, later), "here", queue=queue).feed()
    assert (fed.put, fed.present, fed.conflicts) == (2, 2, 1)
    assert queue.places == ["g_0.1_0", "g_0.1_1", "g_0.1_1", "g_1.1_0"]
    assert queue.tags(_CURSORS)["here"]["cursor"] == "3"


def test_a_path_that_is_listed_twice_before_it_is_stored_is_put_once() -> None:
    queue = Memory()
    fed = Feeder(Pages([a_path(), a_path(leaf=3, cursor="1")]), "here", queue=queue).feed()
    assert (fed.put, fed.present, fed.conflicts) == (1, 1, 0)


@pytest.mark.parametrize(
    ("numbers", "missed"),
    [([], 0), ([2, 3], 5), ([None], None), ([None, 3], None), ([3, None], None)],
)
def test_missed_paths_are_counted_unless_their_number_is_unknown(numbers: list[int | None], missed: int | None) -> None:
    lines = [{"missed": number} for number in numbers]
    fed = Feeder(Pages([*lines, a_path(cursor="1")]), "here", queue=Memory()).feed()
    assert (fed.missed, fed.put) == (missed, 1)


def test_an_unreadable_session_is_gone() -> None:
    line = {"session": "g_0", "gone": "unreadable", "cursor": "1"}
    assert Feeder(Pages([line]), "here", queue=Memory()).feed().gone == 1


def test_a_cursor_of_another_store_is_an_error_until_forgotten(client: Client) -> None:
    queue = Memory()
    queue.tag(_CURSORS, "here", {"cursor": "0-0"})
    finish(client, "g_0")
    feeder = Feeder(client, "here", queue=queue)
    with pytest.raises(HttpError) as raised:
        feeder.feed()
    assert raised.value.code == "other_store"
    feeder.forget()
    assert feeder.feed().put == 1


def test_deleted_and_untrainable_paths_are_counted(client: Client) -> None:
    queue = Memory()
    finish(client, "g_0")
    finish(client, "g_1")
    client.delete("g_0")
    fed = Feeder(client, "here", queue=queue, annotate=lambda path: ({"source": path["session"]}, {"step": 3})).feed()
    assert (fed.put, fed.gone) == (1, 1)
    (key,) = queue.puts
    assert queue.rows[key]["source"] == "g_1"
    assert queue.tags("train")[key]["step"] == 3


def a_path(**changes: Any) -> dict[str, Any]:
    path = {
        "session": "g_0", "version": 1, "leaf": 0, "token_ids": [1, 2, 3], "loss_mask": [0, 1, 0],
        "segments": [{"kind": "prompt", "start": 0}, {"kind": "response", "start": 1}],
        "logprobs": [None, -1.0, None], "entropy": [None, 0.5, 0.25], "policy": [], "flags": [], "reward": None,
        "turns": [{}], "row_key": f"{7:032x}",
    }  # fmt: skip
    return {**path, **changes}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({}, None),
        ({"loss_mask": [0, 0, 0]}, "no_trained_tokens"),
        ({"segments": [{"kind": "response", "start": 0}]}, "no_prompt"),
        ({"logprobs": [None, None, None]}, "missing_logprobs"),
        ({"entropy": [None, None, 0.25]}, "missing_entropy"),
        ({"images": [{"turn": 0, "start": 0, "end": 1}]}, "images_unsupported"),
    ],
)
def test_an_incomplete_path_is_refused(changes: dict[str, Any], reason: str | None) -> None:
    assert _refusal(a_path(**changes)) == reason


def test_context_has_no_numbers() -> None:
    assert _row_of(a_path())[0]["rollout_entropy"] == [0.5, 0.0]


def test_an_object_as_reward_is_not_a_score() -> None:
    row, _ = _row_of(a_path(reward={"score": 1.0}))
    assert "rm_scores" not in row
    assert row["extra_fields"]["tokentap_reward"] == {"score": 1.0}


def test_keys_have_the_parts_of_verl() -> None:
    keys = [_key_of(a_path(session=name, version=2, leaf=5)) for name in ("u_3", "run-1", "a_b_0", "_x", "a-b_0")]
    assert [_place_of(key) for key in keys] == ["u_3.2_5", "run-1_%.2_5", "a%5Fb_0.2_5", "%5Fx_%.2_5", "a-b_0.2_5"]


def test_indices_are_integers_in_the_order_of_leaves() -> None:
    paths = [(0, "f" * 32), (1, "0" * 32), (1, "f" * 32), (2, "0" * 32), (10, "0" * 32)]
    indices = [int(_key_of(a_path(leaf=leaf, row_key=row_key)).split("_")[2]) for leaf, row_key in paths]
    assert indices == sorted(set(indices))
    assert indices[0] == 2**128 - 1


def test_an_uncertain_policy_has_no_step() -> None:
    span = {"epoch": 1, "weight_version": "4", "version": None}
    assert _steps([span, {**span, "version": "6"}]) == (4, 6)
    assert _steps([span, {**span, "until": 2}]) == (None, None)
    assert _steps([{**span, "weight_version": "default"}]) == (None, None)
    assert _steps([span, {**span, "weight_version": None}]) == (None, None)
