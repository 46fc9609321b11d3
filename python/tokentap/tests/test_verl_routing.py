# SPDX-License-Identifier: Apache-2.0
"""Routed experts of a rollout, joined from the replies."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from numpy.typing import NDArray

from tokentap._generation import Generation
from tokentap.verl._problems import MissingExperts
from tokentap.verl._routing import Routing


def experts(tokens: range, weights: int = 0) -> NDArray[np.int32]:
    """Of one layer with two experts a token."""
    return np.array([[[token, 100 + weights]] for token in tokens], np.int32).reshape(-1, 1, 2)


def reply(tokens: range | None, weights: int = 0, finish: str = "stop") -> Generation:
    meta: dict[str, object] = {"id": "r", "finish_reason": {"type": finish}}
    if tokens is not None:
        meta["routed_experts"] = base64.b64encode(experts(tokens, weights).tobytes()).decode()
    return Generation.of({"text": "", "output_ids": [], "meta_info": meta}, {})


def test_pieces_of_a_rollout_are_joined_without_an_overlap() -> None:
    routing = Routing(1, 2)
    assert routing.start([1, 2]) == 0
    routing.add([1, 2, 3, 4], 0, reply(range(3)))
    assert routing.start([1, 2, 3, 4, 5]) == 3, "the last token comes with the next turn"
    routing.add([1, 2, 3, 4, 5, 6], 3, reply(range(3, 5), weights=1))
    assert np.array_equal(routing.rows, np.concatenate([experts(range(3)), experts(range(3, 5), weights=1)]))


def test_a_changed_history_is_asked_for_again() -> None:
    routing = Routing(1, 2)
    routing.add([1, 2, 3, 4], 0, reply(range(3)))
    assert routing.start([1, 9, 3, 4]) == 1
    assert routing.start([1, 2]) == 2, "the engine refuses a start after the prompt"
    routing.add([1, 9, 3], 1, reply(range(1, 2), weights=1))
    assert np.array_equal(routing.rows, np.concatenate([experts(range(1)), experts(range(1, 2), weights=1)]))


def test_an_engine_that_ignores_the_start_reports_known_tokens_again() -> None:
    routing = Routing(1, 2)
    routing.add([1, 2, 3, 4], 0, reply(range(3)))
    routing.add([1, 2, 3, 4, 5, 6], 3, reply(range(5), weights=1))
    assert np.array_equal(routing.rows, np.concatenate([experts(range(3)), experts(range(3, 5), weights=1)]))


def test_the_request_after_an_abort_in_the_queue_asks_for_the_rest() -> None:
    routing = Routing(1, 2)
    assert routing.add([1, 2, 3, 4], 0, reply(range(3)))
    assert not routing.add([1, 2, 3, 4, 5, 6], 3, reply(None, finish="abort"))
    assert routing.start([1, 2, 3, 4, 5, 6]) == 3
    assert np.array_equal(routing.of([1, 2, 3, 4, 5], []), experts(range(3))), "no token was sampled after these"
    with pytest.raises(MissingExperts, match="experts of 2 tokens"):
        routing.of([1, 2, 3, 4, 5], [6])
    routing.add([1, 2, 3, 4, 5, 6, 7], 3, reply(range(3, 6)))
    assert np.array_equal(routing.of([1, 2, 3, 4, 5], [6, 7]), experts(range(6)))
    assert np.array_equal(routing.of([1, 2, 3, 4, 5], [6]), experts(range(5))), "a dropped token has no row"


def test_a_reply_without_a_row_for_each_token_is_refused() -> None:
    routing = Routing(1, 2)
    for one in (reply(None), reply(range(2)), reply(range(4))):
        with pytest.raises(MissingExperts, match="enable-return-routed-experts"):
            routing.add([1, 2, 3, 4], 0, one)
    routing.add([1], 0, reply(range(0)))
    assert routing.rows.shape == (0, 1, 2)
