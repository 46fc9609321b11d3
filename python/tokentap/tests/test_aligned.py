# SPDX-License-Identifier: Apache-2.0
"""Ids and numbers of whole replies: recordings of real servers, and invalid replies."""

from __future__ import annotations

import json
from typing import Any

import pytest
from conftest import ROOT, Either
from scripted import Scripted, generated, reply

from tokentap._generation import Generation


def recorded() -> list[tuple[str, dict[str, Any]]]:
    """Whole generations, one for each sequence."""
    found = []
    for request in sorted((ROOT / "tests" / "fixtures").glob("*/*/*/request.json")):
        case, asked = request.parent, json.loads(request.read_text())
        body = asked.get("body")
        if asked["path"] != "/generate" or not isinstance(body, dict) or body.get("stream"):
            continue
        if (case / "response.status").read_text().strip() == "200":
            answer = json.loads((case / "response.body").read_text())
            name = "-".join(case.parts[-3:])
            found += [(name, one) for one in (answer if isinstance(answer, list) else [answer])]
    return found


RECORDED = recorded()


def test_recorded_replies_have_one_number_for_each_id() -> None:
    servers: dict[str, int] = {}
    longer = 0
    for name, raw in RECORDED:
        made = Generation.of(raw, {})
        meta = raw["meta_info"]
        given = meta.get("output_token_logprobs")
        assert made.reason is None, name
        if given is None:
            assert (made.output_ids, made.logprobs) == (raw["output_ids"], None), name
        else:
            assert made.logprobs == [row[0] for row in given], name
            assert made.output_ids == [row[1] for row in given], name
            assert len(made.output_ids) == meta["completion_tokens"], name
            servers[name.split("-default")[0]] = servers.get(name.split("-default")[0], 0) + 1
            longer += len(made.output_ids) > len(raw["output_ids"])
    assert len(RECORDED) >= 200
    assert {"sglang-0.5.23", "sglang-0.5.6.post2", "sglang-jax"} <= set(servers)
    assert longer >= 5, "recordings in which sglang-jax omitted the stop token"


@pytest.mark.parametrize("name", ["entropy", "entropy_lower", "entropy_upper"])
@pytest.mark.parametrize("count", [0, 1, 3])
def test_lists_of_another_length_than_the_ids_are_none_with_a_reason(
    do: Either, scripted: Scripted, name: str, count: int
) -> None:
    raw = generated([1, 2], **{f"output_token_{name}": [0.5] * count})
    scripted.script(reply(200, json.dumps(raw)))
    made = do(scripted, "generate", "a")
    field = name.removeprefix("entropy_")
    assert getattr(made, field) is None
    assert made.reason == f"{field}: {count} numbers for 2 ids"
    assert made.meta_info[f"output_token_{name}"] == [0.5] * count, "the reply is unchanged"


@pytest.mark.parametrize("count", [0, 1, 4])
def test_rows_of_another_length_than_the_tokens_are_dropped(do: Either, scripted: Scripted, count: int) -> None:
    scripted.script(reply(200, json.dumps(generated([1, 2], output_token_logprobs=[[-1.0, 9, None]] * count))))
    made = do(scripted, "generate", "a")
    assert (made.output_ids, made.logprobs) == ([1, 2], None)
    assert made.reason == f"logprobs: {count} numbers for 2 ids"


def test_a_row_beyond_the_token_count_is_ignored(do: Either, scripted: Scripted) -> None:
    rows = [[-1.0, 1, None], [-2.0, 9, None], [-3.0, 3, None]]
    scripted.script(reply(200, json.dumps(generated([1, 2], output_token_logprobs=rows))))
    made = do(scripted, "generate", "a")
    assert (made.output_ids, made.logprobs, made.reason) == ([1, 9], [-1.0, -2.0], None)


def test_ids_without_rows_have_no_logprobs() -> None:
    meta = {"finish_reason": {"type": "abort"}, "output_token_logprobs": []}
    made = Generation.of({"text": "", "output_ids": [9], "meta_info": meta}, {})
    assert (made.output_ids, made.logprobs) == ([9], None)
    assert made.reason == "logprobs: 0 numbers for 1 ids"
