# SPDX-License-Identifier: Apache-2.0
"""What the values of the client are: tables, texts for people, copies in other processes, and errors of arguments."""

from __future__ import annotations

import asyncio
import importlib.util
import pickle
from typing import Any

import numpy as np
import pytest
from conftest import Demo, Either

import tokentap
from tokentap import AsyncClient, Client, notebook, plot

TABLES = {"arrow": "pyarrow", "pandas": "pandas", "polars": "polars"}


def recorded(do: Either, demo: Demo, session: str) -> None:
    do(demo, "generate", input_ids=[299, 467], session=session, max_new_tokens=4, return_logprob=True)


@pytest.mark.parametrize("format", ["jsonl", "arrow", "parquet"])
@pytest.mark.parametrize("kind", TABLES)
def test_rows_are_a_table(do: Either, demo: Demo, session: str, format: str, kind: str) -> None:
    if any(importlib.util.find_spec(name) is None for name in ("pyarrow", TABLES[kind])):
        pytest.skip("not installed here")
    recorded(do, demo, session)
    table = getattr(do(demo, "samples", [session], format), kind)()
    assert len(table) == 1
    assert table["session"][0] in (session, pytest.importorskip("pyarrow").scalar(session))
    (row,) = do(demo, "samples", [session], "jsonl").json()
    assert list(table.column_names if kind == "arrow" else table.columns) == list(row)
    cell = table["logprobs"][0]
    values = cell.as_py() if kind == "arrow" else list(cell)
    # pandas has NaN for null
    assert [None if value is None or value != value else pytest.approx(value) for value in values] == row["logprobs"]
    assert row["logprobs"][:2] == [None, None], "the row begins with a prompt"


@pytest.mark.parametrize(
    ("format", "method", "refusal"),
    [
        ("verl", "pandas", r"verl has no columns: use numpy\(\) or torch\(\)"),
        ("verl", "json", r"verl has no JSON: use numpy\(\) or torch\(\)"),
        ("slime", "numpy", r"slime has no tensors: use json\(\)"),
        ("jsonl", "numpy", r"jsonl has no tensors: use json\(\), arrow\(\)"),
        ("arrow", "json", r"arrow has no JSON: use arrow\(\), pandas\(\)"),
        ("parquet", "json", r"parquet has no JSON: use arrow\(\), pandas\(\)"),
    ],
)
def test_a_refused_reader_names_the_right_one(
    do: Either, demo: Demo, session: str, format: str, method: str, refusal: str
) -> None:
    recorded(do, demo, session)
    with pytest.raises(ValueError, match=refusal):
        getattr(do(demo, "samples", [session], format), method)()


def test_none_stands_for_all_sessions(do: Either, demo: Demo, session: str) -> None:
    recorded(do, demo, session)
    rows = do(demo, "samples", None, "jsonl").json()
    listed = {listed["session"] for listed in do(demo, "sessions")}
    assert session in {row["session"] for row in rows} <= listed


def test_texts_of_values_are_short(do: Either, demo: Demo, session: str) -> None:
    request = {"input_ids": [299, 467], "max_new_tokens": 500, "ignore_eos": True}
    made = do(demo, "generate", **request, session=session, return_logprob=True, top_k=8, return_sampling_mask=True)
    samples = do(demo, "samples", [session])
    (row,) = do(demo, "samples", [session], "jsonl").json()
    delta = do(demo, "stream", **request)[-1]
    (column,) = tokentap.columns(row)
    image = tokentap.Image(bytes(10_000))
    for value in (made, samples, samples.numpy(), delta, column, image, Client("http://host:1", token="secret")):
        assert len(repr(value)) < 700, value
    assert "secret" not in repr(Client("http://host:1", token="secret"))
    ids = ", ".join(map(str, made.output_ids[:4]))
    assert f"output_ids=[{ids}, ...]" in repr(made)
    assert "rollout_entropy [1, 500]" in repr(samples.numpy())
    assert repr(image) == "Image(application/octet-stream, 10,000 bytes)"


def test_the_text_of_a_batch_of_many_tensors_is_short() -> None:
    batch = tokentap.Batch({f"tokens.{row}": np.zeros(9) for row in range(5000)}, {}, [{}] * 3, {"a": "b" * 5000})
    assert repr(batch).endswith("tokens.15 [9], 4,984 more tensors, 3 refused)")
    assert len(repr(batch)) < 700


def test_a_client_is_copied_with_its_settings(demo: Demo) -> None:
    with Client(demo.data, demo.control, token="key", timeout=9.0, retries=5, pause=0.5) as client:
        client.policy()  # has a connection
        copy = pickle.loads(pickle.dumps(client))
    assert copy._settings == client._settings
    assert "epoch" in copy.policy()
    copy.close()

    async def run() -> None:
        async with AsyncClient(demo.data, demo.control, retries=5) as client:
            await client.policy()
            copy = pickle.loads(pickle.dumps(client))
            assert copy._settings == client._settings
            assert "epoch" in await copy.policy()
            await copy.close()

    asyncio.run(run())


def test_an_async_client_names_the_reason_in_another_loop(demo: Demo) -> None:
    client = AsyncClient(demo.data, demo.control)

    async def use_and_close() -> None:
        assert "epoch" in await client.policy()
        await client.close()

    asyncio.run(use_and_close())
    asyncio.run(use_and_close())

    async def use() -> None:
        await client.policy()
        with pytest.raises(RuntimeError, match="belongs to one event loop: make one in each loop"):
            await asyncio.to_thread(asyncio.run, client.policy())
        await client.close()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("reward", "place"),
    [
        (float("nan"), "reward is nan"),
        (float("inf"), "reward is inf"),
        (np.float32("-inf"), "reward is -inf"),
        ({"score": [1.0, np.float64("nan")]}, r"reward.score\[1\] is nan"),
        (np.array([0.5, np.nan]), r"reward\[1\] is nan"),
    ],
)
def test_a_reward_that_is_no_number_is_named(do: Either, demo: Demo, reward: Any, place: str) -> None:
    with pytest.raises(ValueError, match=f"session 'run-1': {place}, .* finite number"):
        do(demo, "reward", "run-1", reward)


def test_a_number_that_is_not_finite_is_named(do: Either, demo: Demo) -> None:
    samples = [{"session": "a", "reward": 1.0}, {"session": "b", "reward": np.float32("nan")}]
    with pytest.raises(ValueError, match=r"groups\[0\].samples\[1\].reward is nan"):
        do(demo, "advantages", [{"id": "g", "samples": samples}])
    with pytest.raises(ValueError, match=r"sampling_params.temperature is nan"):
        do(demo, "generate", "a", temperature=float("nan"))


def test_what_trajectories_returns_is_shown(do: Either, demo: Demo, session: str) -> None:
    recorded(do, demo, session)
    do(demo, "generate", input_ids=[300], session=session, max_new_tokens=4)
    reply = do(demo, "trajectories", session)
    assert len(reply["trajectories"]) == 2
    assert notebook.show(reply).html.count('class="plots"') == 2
    with pytest.raises(ValueError, match="no path to show"):
        notebook.show({"trajectories": []})
    if importlib.util.find_spec("matplotlib") is not None:
        plot.histogram(reply)


@pytest.mark.parametrize("function", ["show", "tokens", "curve", "histogram", "split"])
@pytest.mark.parametrize(
    ("value", "what"),
    [
        ("run-1", "str"),
        ({"session": "run-1", "list": []}, "an object with session, list"),
        (object(), "object"),
    ],
)
def test_what_is_not_a_path_is_named(demo: Demo, function: str, value: Any, what: str) -> None:
    with Client(demo.data, demo.control) as client, pytest.raises(ValueError, match=f"^{what} is not a path: give"):
        getattr(notebook, function)(value, *([client] if function != "histogram" else []))


def test_the_version_is_that_of_the_distribution() -> None:
    assert tokentap.__version__ == "unknown" or tokentap.__version__[0].isdigit()
