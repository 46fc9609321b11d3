# SPDX-License-Identifier: Apache-2.0
"""Generations through a real tokentap, compared with their recorded turns and with a formula."""

from __future__ import annotations

import asyncio
import math
from concurrent.futures import ThreadPoolExecutor

import pytest
from conftest import Demo, Either

from tokentap import AsyncClient, Client, ContextLengthExceeded, HttpError

PROMPT = [299, 467, 345]


def test_a_generation_equals_its_recorded_turn(do: Either, demo: Demo, session: str) -> None:
    made = do(
        demo,
        "generate",
        input_ids=PROMPT,
        session=session,
        sampling_params={"max_new_tokens": 9, "ignore_eos": True, "temperature": 0.9},
        entropy_options={"bounds": True},
        return_logprob=True,
    )
    assert made.session == session
    assert made.finish_reason == "length"
    assert len(made.output_ids) == len(made.entropy) == len(made.logprobs) == 9
    assert made.raw["output_ids"] == made.output_ids
    assert made.raw["meta_info"] is made.meta_info
    assert made.entropy_info["unit"] == "nats"
    for low, entropy, high in zip(made.lower, made.entropy, made.upper, strict=True):
        assert 0 <= low <= entropy <= high
    (path,) = do(demo, "trajectories", session)["trajectories"]
    assert path["token_ids"] == PROMPT + made.output_ids
    assert path["loss_mask"] == [0] * 3 + [1] * 9
    assert path["entropy"] == [None] * 3 + made.entropy
    assert path["turns"][0]["rid"] == made.rid
    (turn,) = do(demo, "session", session)["list"]
    assert turn["rid"] == made.rid
    assert do(demo, "entropy", made.rid, since=4)["entropy"] == made.entropy[4:]


def test_entropies_equal_those_of_the_distribution(do: Either, demo: Demo) -> None:
    # k is the demo's whole vocabulary, so the entropy is exact
    made = do(
        demo,
        "generate",
        "The lamp",
        sampling_params={"max_new_tokens": 12, "ignore_eos": True, "temperature": 1.3},
        return_logprob=True,
        top_logprobs_num=1024,
    )
    assert made.entropy_info["source"] == "exact"
    rows = made.meta_info["output_top_logprobs"]
    assert len(rows) == len(made.entropy) == 12
    for row, entropy in zip(rows, made.entropy, strict=True):
        logprobs = [entry[0] for entry in row if entry[0] is not None and entry[0] > -1000]
        assert entropy == pytest.approx(-math.fsum(math.exp(x) * x for x in logprobs), abs=1e-5)


def test_a_continued_prompt_extends_the_path(do: Either, demo: Demo, session: str) -> None:
    first = do(
        demo, "generate", input_ids=PROMPT, session=session, sampling_params={"max_new_tokens": 4, "ignore_eos": True}
    )
    whole = PROMPT + first.output_ids + [258]
    second = do(
        demo,
        "generate",
        input_ids=whole,
        session=session,
        sampling_params={"max_new_tokens": 4, "ignore_eos": True},
        done=True,
    )
    (path,) = do(demo, "trajectories", session)["trajectories"]
    assert path["token_ids"] == whole + second.output_ids
    assert do(demo, "session", session)["done"] is True


def test_declined_entropies_are_absent(do: Either, demo: Demo) -> None:
    made = do(
        demo, "generate", "The lamp", return_entropy=False, sampling_params={"max_new_tokens": 3, "ignore_eos": True}
    )
    assert (made.entropy, made.lower, made.upper, made.entropy_info, made.logprobs) == (None,) * 5
    assert len(made.output_ids) == 3


@pytest.mark.parametrize(
    ("prompts", "n"), [({"text": ["The lamp", "The sea"]}, 1), ({"input_ids": [PROMPT, [1, 2]]}, 2), ({"text": "a"}, 3)]
)
def test_a_batch_returns_a_list(do: Either, demo: Demo, session: str, prompts: dict[str, object], n: int) -> None:
    sampling = {"max_new_tokens": 3, "ignore_eos": True, "n": n}
    with pytest.raises(ValueError, match="generate_batch"):
        do(demo, "generate", session=session, sampling_params=sampling, **prompts)
    made = do(demo, "generate_batch", session=session, sampling_params=sampling, **prompts)
    given = prompts.get("text") or prompts["input_ids"]
    assert len(made) == n * (len(given) if isinstance(given, list) else 1)
    assert all(len(one.entropy) == len(one.output_ids) == 3 for one in made)
    assert do(demo, "session", session)["sampled_tokens"] == 3 * len(made)


def test_a_batch_of_one_returns_a_list(do: Either, demo: Demo) -> None:
    assert len(do(demo, "generate_batch", ["The lamp"], sampling_params={"max_new_tokens": 1})) == 1
    assert len(do(demo, "generate_batch", "The lamp", sampling_params={"max_new_tokens": 1})) == 1


def test_generate_refuses_stream(do: Either, demo: Demo) -> None:
    with pytest.raises(ValueError, match=r"use stream\(\)"):
        do(demo, "generate", "a", stream=True)


def test_a_prompt_needs_either_text_or_ids(do: Either, demo: Demo) -> None:
    for prompt in ({}, {"text": "a", "input_ids": [1]}):
        with pytest.raises(ValueError, match="either"):
            do(demo, "generate", **prompt)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "é", "x" * 129])
def test_an_invalid_session_name_raises_value_error(do: Either, demo: Demo, name: str) -> None:
    with pytest.raises(ValueError, match="session's name"):
        do(demo, "generate", "a", session=name)


def test_a_prompt_that_is_too_long_raises_context_length_exceeded(do: Either, demo: Demo) -> None:
    with pytest.raises(ContextLengthExceeded) as raised:
        do(demo, "generate", input_ids=[1] * 300_000, _retries=3)
    assert "262144" in raised.value.body


def test_a_base_url_may_name_the_session(do: Either, demo: Demo, session: str) -> None:
    where = Demo(f"{demo.data}/sessions/{session}/", demo.control)
    assert do(where, "generate", "The lamp", sampling_params={"max_new_tokens": 1}).session == session


def test_threads_share_a_client(demo: Demo, session: str) -> None:
    with Client(demo.data, demo.control, retries=0) as client, ThreadPoolExecutor(8) as pool:

        def one(number: int) -> tuple[str | None, list[int]]:
            name = f"{session}-{number % 8}"
            return name, client.generate(input_ids=[number % 1000 + 1], session=name).output_ids

        made = list(pool.map(one, range(64)))
        for name in {name for name, _ in made}:
            paths = client.trajectories(str(name))["trajectories"]
            recorded = sorted(path["token_ids"][1:] for path in paths)
            assert recorded == sorted(ids for session_name, ids in made if session_name == name)


def test_connections_are_reused(demo: Demo) -> None:
    with Client(demo.data, demo.control, retries=0) as client:
        client.generate("a", sampling_params={"max_new_tokens": 1})
        (kept,) = client._data._idle
        list(client.stream("a", sampling_params={"max_new_tokens": 1}))
        client.generate("a", sampling_params={"max_new_tokens": 1})
        with pytest.raises(HttpError):
            client.generate("a", sampling_params={"temperature": -1.0, "max_new_tokens": 1})
        (again,) = client._data._idle
        assert again[1] is kept[1]


def test_a_reused_connection_sends_a_large_body(demo: Demo) -> None:
    # larger than the buffers of the connection, so that sending blocks
    with Client(demo.data, demo.control, retries=0) as client:
        client.generate("a", sampling_params={"max_new_tokens": 1})
        with pytest.raises(ContextLengthExceeded):
            client.generate(input_ids=[123] * 3_000_000)


def test_a_closed_connection_is_not_reused(demo: Demo) -> None:
    with Client(demo.data, demo.control, retries=0) as client:
        client.generate("a", sampling_params={"max_new_tokens": 1})
        (kept,) = client._data._idle
        kept[1].sock.shutdown(2)
        assert client.generate("a", sampling_params={"max_new_tokens": 1}).output_ids


def test_tasks_share_a_client(demo: Demo, session: str) -> None:
    async def many() -> list[str | None]:
        async with AsyncClient(demo.data, demo.control, retries=0) as client:
            calls = [client.generate("a", session=f"{session}-{at}") for at in range(50)]
            return [made.session for made in await asyncio.gather(*calls)]

    assert asyncio.run(many()) == [f"{session}-{at}" for at in range(50)]
