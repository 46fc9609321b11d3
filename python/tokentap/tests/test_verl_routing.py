"""Routed experts of a rollout, joined from the replies."""

from __future__ import annotations

import base64

import numpy as np
import pytest
from numpy.typing import NDArray

from tokentap.verl.problems import MissingExperts
from tokentap.verl.routing import Routing


def experts(tokens: range, weights: int = 0) -> NDArray[np.int32]:
    """Of one layer with two experts a token."""
    return np.array([[[token, 100 + weights]] for token in tokens], np.int32).reshape(-1, 1, 2)


def meta(tokens: range, weights: int = 0) -> dict[str, str]:
    return {"routed_experts": base64.b64encode(experts(tokens, weights).tobytes()).decode()}


def test_pieces_of_a_rollout_are_joined_without_an_overlap() -> None:
    routing = Routing(1, 2)
    assert routing.start([1, 2]) == 0
    routing.add([1, 2, 3, 4], 0, meta(range(3)))
    assert routing.start([1, 2, 3, 4, 5]) == 3, "the last token comes with the next turn"
    routing.add([1, 2, 3, 4, 5, 6], 3, meta(range(3, 5), weights=1))
    assert np.array_equal(routing.rows, np.concatenate([experts(range(3)), experts(range(3, 5), weights=1)]))


def test_a_changed_history_is_asked_for_again() -> None:
    routing = Routing(1, 2)
    routing.add([1, 2, 3, 4], 0, meta(range(3)))
    assert routing.start([1, 9, 3, 4]) == 1
    assert routing.start([1, 2]) == 2, "the engine refuses a start after the prompt"
    routing.add([1, 9, 3], 1, meta(range(1, 2), weights=1))
    assert np.array_equal(routing.rows, np.concatenate([experts(range(1)), experts(range(1, 2), weights=1)]))


def test_a_reply_without_a_row_for_each_token_is_refused() -> None:
    routing = Routing(1, 2)
    for reply in ({}, meta(range(2)), meta(range(4))):
        with pytest.raises(MissingExperts, match="enable-return-routed-experts"):
            routing.add([1, 2, 3, 4], 0, reply)
    routing.add([1], 0, {"routed_experts": ""})
    assert routing.rows.shape == (0, 1, 2)
