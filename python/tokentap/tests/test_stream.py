# SPDX-License-Identifier: Apache-2.0
"""Streams of every mode, live and recorded, converted to deltas."""

from __future__ import annotations

import asyncio
import json
import time
from collections import defaultdict
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT, Demo, Either
from scripted import Scripted, events, generated, reply

from tokentap import AsyncClient, Client, Undecodable
from tokentap._stream import Decoder, Deltas

FIXTURES = ROOT / "tests" / "fixtures"


def recorded() -> list[Path]:
    """Cases in which a real SGLang streamed a generation."""
    found = []
    for case in sorted(FIXTURES.glob("*/*/*/request.json")):
        request = json.loads(case.read_text())
        body = request.get("body")
        status = (case.parent / "response.status").read_text().strip()
        if request["path"] == "/generate" and isinstance(body, dict) and body.get("stream") and status == "200":
            found.append(case.parent)
    return found


def recorded_events(case: Path) -> list[dict[str, Any]]:
    """The events of a recording, read without the code under test."""
    lines = (case / "response.body").read_text().split("\n")
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


# some end without an event, and some are errors
RECORDED = [case for case in recorded() if all("meta_info" in event for event in recorded_events(case) or [{}])]


def last_holds_all(case: Path) -> bool:
    """Whether this server's streams are cumulative, by the arguments of its start."""
    return case.parent.name != "incremental" and "stream-output" not in case.parts


@pytest.mark.parametrize("case", RECORDED, ids=lambda case: f"{case.parent.parent.name}-{case.parent.name}-{case.name}")
@pytest.mark.parametrize("size", [7, 1 << 20])
def test_deltas_of_a_recorded_stream_add_up(case: Path, size: int) -> None:
    body = (case / "response.body").read_bytes()
    decoder, deltas = Decoder(), Deltas()
    made = defaultdict(list)
    for at in range(0, len(body), size):
        for event in decoder.feed(body[at : at + size]):
            delta = deltas.of(event)
            made[delta.index].append(delta)
    decoder.end(200)
    whole: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in recorded_events(case):
        whole[event.get("index") or 0].append(event)
    assert set(made) == set(whole)
    for index, parts in made.items():
        last = whole[index][-1]
        ids = [one for part in parts for one in part.output_ids]
        text = "".join(part.text for part in parts)
        rows = last["meta_info"].get("output_token_logprobs")
        if case.parent.name == "incremental":
            assert ids == [one for event in whole[index] for one in event["output_ids"]]
            assert text == "".join(event["text"] for event in whole[index])
        elif last_holds_all(case):
            assert (ids, text) == (last["output_ids"], last["text"])
        else:
            # 0.5.6 --stream-output: ids are incremental, text and logprobs cumulative
            assert ids == [one for event in whole[index] for one in event["output_ids"]]
            assert rows is None or text == last["text"]
        if rows is not None and case.parent.name != "incremental":
            assert [one for part in parts for one in part.logprobs or []] == [row[0] for row in rows]
        assert len(ids) == last["meta_info"]["completion_tokens"]
        assert [part.finish_reason for part in parts[:-1]] == [None] * (len(parts) - 1)
        assert parts[-1].finish_reason == last["meta_info"]["finish_reason"]["type"]


def test_recordings_exist() -> None:
    assert len(RECORDED) >= 20
    assert {case.parent.parent.name for case in RECORDED} == {"sglang-0.5.23", "sglang-0.5.6.post2", "sglang-jax"}


@pytest.mark.parametrize("n", [1, 3])
def test_the_deltas_of_a_live_stream_equal_its_recorded_turn(do: Either, demo: Demo, session: str, n: int) -> None:
    made = do(
        demo,
        "stream",
        input_ids=[299, 467],
        session=session,
        sampling_params={"max_new_tokens": 20, "ignore_eos": True, "n": n},
        entropy_options={"bounds": True},
        return_logprob=True,
    )
    sums: dict[int, dict[str, list[Any]]] = defaultdict(lambda: defaultdict(list))
    for delta in made:
        for name in ("output_ids", "entropy", "lower", "upper", "logprobs"):
            sums[delta.index][name] += getattr(delta, name)
    paths = do(demo, "trajectories", session)["trajectories"]
    assert sorted(path["token_ids"][2:] for path in paths) == sorted(one["output_ids"] for one in sums.values())
    for path in paths:
        one = next(one for one in sums.values() if one["output_ids"] == path["token_ids"][2:])
        assert path["entropy"][2:] == one["entropy"]
        assert len(one["lower"]) == len(one["upper"]) == len(one["logprobs"]) == 20
    last = [delta for delta in made if delta.finish_reason]
    assert len(last) == n
    assert all(delta.entropy_info["source"] == "top_k" for delta in last)


def cumulative(ids: list[int], entropy: list[float], text: str, finish: str | None) -> dict[str, Any]:
    return generated(ids, text, finish, output_token_entropy=entropy)


def test_a_cumulative_stream_has_each_entropy_once(do: Either, scripted: Scripted) -> None:
    scripted.script(
        events(
            cumulative([5], [0.5], "a\ufffd", None),
            cumulative([5, 6, 7], [0.5, 0.6, 0.7], "aé b", None),
            cumulative([5, 6, 7], [0.5, 0.6, 0.7], "aé b", "stop"),
        )
    )
    made = do(scripted, "stream", "x")
    assert [delta.output_ids for delta in made] == [[5], [6, 7], []]
    assert [delta.entropy for delta in made] == [[0.5], [0.6, 0.7], []]
    assert [delta.text for delta in made] == ["a", "é b", ""]


def test_an_abort_in_an_incremental_stream_repeats_everything(do: Either, scripted: Scripted) -> None:
    first, second = generated([5], "a", None), generated([6], "b", None)
    second["meta_info"]["completion_tokens"] = 2
    scripted.script(events(first, second, generated([5, 6], "ab", "abort")))
    made = do(scripted, "stream", "x")
    assert [delta.output_ids for delta in made] == [[5], [6], []]
    assert "".join(delta.text for delta in made) == "ab"
    assert made[-1].finish_reason == "abort"


def counted(ids: list[int], text: str, count: int, finish: str | None = None, **meta: object) -> dict[str, Any]:
    """An event with a count of `count` tokens and any list of ids."""
    event = generated(ids, text, finish, **meta)
    event["meta_info"]["completion_tokens"] = count
    return event


def rows(*tokens: int) -> list[Any]:
    return [[-float(token), token, None] for token in tokens]


# events, the ids and the text that each adds
GROWTHS: dict[str, tuple[list[dict[str, Any]], list[list[int]], list[str]]] = {
    "jax cuts the stop token": (
        [counted([11], "a", 1), counted([11, 12], "a b", 2), counted([11, 12], "a b", 3, "stop")],
        [[11], [12], []],
        ["a", " b", ""],
    ),
    "jax cuts a stop token that comes with others": (
        [counted([11], "a", 1), counted([11, 12, 13], "a b c", 4, "stop", cache_miss_count=0)],
        [[11], [12, 13]],
        ["a", " b c"],
    ),
    "jax cuts what would look new in an incremental stream": (
        [counted([11], "a", 1), counted([11, 12], "a b", 2), counted([11, 12], "a b", 4, "stop")],
        [[11], [12], []],
        ["a", " b", ""],
    ),
    "jax drops a special id": (
        [
            counted([11], "a", 1, cache_miss_count=0),
            counted([11], "a", 2, cache_miss_count=0),
            counted([11, 13], "a c", 3, cache_miss_count=0),
            counted([11, 13], "a c", 4, "stop", cache_miss_count=0),
        ],
        [[11], [], [13], []],
        ["a", "", " c", ""],
    ),
    "jax with rows": (
        [
            counted([11], "a", 1, output_token_logprobs=rows(11)),
            counted([11], "a", 2, output_token_logprobs=rows(11, 99)),
            counted([11, 13], "a c", 4, "stop", output_token_logprobs=rows(11, 99, 13, 98)),
        ],
        [[11], [99], [13, 98]],
        ["a", "", " c"],
    ),
    "a row more than is counted": (
        [
            counted([11], "a", 1, output_token_logprobs=rows(11, 12)),
            counted([11, 12], "ab", 2, "length", output_token_logprobs=rows(11, 12, 13)),
        ],
        [[11], [12]],
        ["a", "b"],
    ),
    "incremental, the same token again and again": (
        [counted([7], "ha", 1), counted([7], "ha", 2), counted([7, 7], "haha", 4), counted([8], ".", 5, "stop")],
        [[7], [7], [7, 7], [8]],
        ["ha", "ha", "haha", "."],
    ),
    "incremental, and an abort after two tokens": (
        [
            counted([5], "a", 1, output_token_logprobs=rows(5)),
            counted([6], "b", 2, output_token_logprobs=rows(6)),
            counted([5, 6], "ab", 2, "abort", output_token_logprobs=rows(5, 6)),
        ],
        [[5], [6], []],
        ["a", "b", ""],
    ),
}


@pytest.mark.parametrize("name", GROWTHS)
def test_the_mode_of_a_stream_is_determined_once(do: Either, scripted: Scripted, name: str) -> None:
    sent, ids, texts = GROWTHS[name]
    scripted.script(events(*sent))
    made = do(scripted, "stream", "x")
    assert [delta.output_ids for delta in made] == ids
    assert [delta.text for delta in made] == texts
    for delta in made:
        assert delta.logprobs is None or delta.logprobs == [-float(token) for token in delta.output_ids]


def test_an_aborted_sequence_does_not_determine_the_mode(do: Either, scripted: Scripted) -> None:
    sent = [counted([5], "a", 1), counted([5], "a", 1, "abort"), counted([6], "b", 1), counted([7], "c", 2, "stop")]
    scripted.script(events(*({**event, "index": at // 2} for at, event in enumerate(sent))))
    made = do(scripted, "stream", "x")
    assert [(delta.index, delta.output_ids, delta.text) for delta in made] == [
        (0, [5], "a"), (0, [], ""), (1, [6], "b"), (1, [7], "c"),
    ]  # fmt: skip


def test_entropies_of_another_length_than_the_ids_are_none_with_a_reason(do: Either, scripted: Scripted) -> None:
    # like sglang-jax without logprobs: a number for each token, and ids for only some
    scripted.script(
        events(
            counted([11], "a", 1, output_token_entropy=[0.1]),
            counted([11, 12], "ab", 3, "stop", output_token_entropy=[0.1, 0.2, 0.3], cache_miss_count=0),
        )
    )
    first, last = do(scripted, "stream", "x")
    assert (first.entropy, first.reason) == ([0.1], None)
    assert (last.output_ids, last.entropy, last.reason) == ([12], None, "entropy: 2 numbers for 1 ids")


def test_a_split_character_of_an_incremental_stream_is_kept(do: Either, scripted: Scripted) -> None:
    second = generated([6], "b", "stop")
    second["meta_info"]["completion_tokens"] = 2
    scripted.script(events(generated([5], "a\ufffd", None), second))
    assert "".join(delta.text for delta in do(scripted, "stream", "x")) == "a\ufffdb"


@pytest.mark.parametrize(
    "event", [{"choices": []}, {"meta_info": {}}, {"meta_info": {"completion_tokens": 1}, "output_ids": 5}, [1]]
)
def test_an_event_of_another_shape_raises_undecodable(do: Either, scripted: Scripted, event: object) -> None:
    scripted.script(events(event))
    with pytest.raises(Undecodable):
        do(scripted, "stream", "x")


def test_events_after_done_are_ignored(do: Either, scripted: Scripted) -> None:
    event, end = f"data: {json.dumps(generated([1]))}\n\n", "data: [DONE]\n\n"
    scripted.script(reply(200, event + end + event, "text/event-stream"))
    assert [delta.output_ids for delta in do(scripted, "stream", "x")] == [[1]]
    decoder = Decoder()
    assert [len(list(decoder.feed(data.encode()))) for data in (event, end, event)] == [1, 0, 0]


def test_leaving_a_stream_ends_the_generation(demo: Demo, session: str) -> None:
    sampling = {"max_new_tokens": 4000, "ignore_eos": True}
    # 24 MB of events, more than the buffers in between hold
    rows: dict[str, Any] = {"return_logprob": True, "top_logprobs_num": 200}

    def tokens(turns: int) -> int:
        """Waits until the session has this number of turns."""
        with Client(demo.data, demo.control, retries=0) as client:
            end = time.monotonic() + 20
            while time.monotonic() < end:
                seen = [one for one in client.sessions() if one["session"] == session]
                if seen and seen[0]["turns"] == turns:
                    return int(seen[0]["sampled_tokens"])
        raise TimeoutError(f"{turns} turns were not recorded")

    with Client(demo.data, demo.control, retries=0) as client:
        stream = client.stream("a", session=session, sampling_params=sampling, **rows)
        next(stream)
        stream.close()
        assert not client._data._idle, "a connection with an unread reply must not be reused"
    assert tokens(1) < 4000

    async def leave() -> None:
        async with (
            AsyncClient(demo.data, demo.control, retries=0) as client,
            aclosing(client.stream("b", session=session, sampling_params=sampling, **rows)) as stream,
        ):
            await anext(stream)

    asyncio.run(leave())
    assert tokens(2) < 8000
