# SPDX-License-Identifier: Apache-2.0
"""Texts of ids from an engine's /detokenize, with tokenizers of both kinds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from tokentap._call import Call, Reply
from tokentap._texts import BATCH, Texts

PIECES = {1: b" a", 2: b"b", 3: b" c", 4: "é".encode()[:1], 5: "é".encode()[1:], 6: b""}


class Engine:
    """Decodes ids like an engine; with `strips` it drops the leading space of each text, as SentencePiece does."""

    def __init__(self, strips: bool) -> None:
        self.strips = strips
        self.requests: list[Any] = []

    def decode(self, ids: Sequence[int]) -> str:
        text = b"".join(PIECES.get(id, b"x") for id in ids).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.strips else text

    def _send(self, call: Call[Any]) -> Any:
        assert (call.method, call.target, call.control) == ("POST", "/detokenize", True)
        body = json.loads(call.body or b"")
        assert body["skip_special_tokens"] is False
        self.requests.append(body["tokens"])
        return call.answer(Reply(200, {}, json.dumps({"text": [self.decode(ids) for ids in body["tokens"]]}).encode()))


@pytest.mark.parametrize("strips", [False, True])
def test_leading_spaces_are_kept(strips: bool) -> None:
    texts = Texts(client=Engine(strips))  # type: ignore[arg-type]
    texts.load([1, 2, 3, 1, 6])
    assert [texts.of(id) for id in (1, 2, 3, 6)] == [" a", "b", " c", ""]
    texts.load([3, 2, 9])
    assert texts.of(9) == "x"
    assert texts.problem == ""


def test_each_id_is_fetched_once_and_in_batches() -> None:
    engine = Engine(strips=False)
    texts = Texts({7: "given"}, engine)  # type: ignore[arg-type]
    ids = [7, *range(10, 10 + BATCH + 5)]
    texts.load(ids)
    texts.load(ids)
    # one more item of the first request tests for a leading space
    assert [len(tokens) for tokens in engine.requests] == [BATCH + 1, 5]
    assert texts.of(7) == "given"


def test_parts_of_a_character_are_decoded_together() -> None:
    texts = Texts(client=Engine(strips=False))  # type: ignore[arg-type]
    ids = [2, 4, 5, 2, 5]
    texts.load(ids)
    assert [texts.of(id) for id in ids] == ["b", "\ufffd", "\ufffd", "b", "\ufffd"]
    assert [texts.whole(ids, at) for at in range(5)] == [None, None, "é", None, None]


@pytest.mark.parametrize("body", [b"{}", b'{"text":"a"}', b'{"text":[]}', b"not JSON"])
def test_an_engine_without_texts_leaves_ids(body: bytes) -> None:
    class Other(Engine):
        def _send(self, call: Call[Any]) -> Any:
            return call.answer(Reply(200, {}, body))

    texts = Texts(client=Other(strips=False))  # type: ignore[arg-type]
    texts.load([1])
    assert texts.of(1) is None
    assert "Tokens show their ids" in texts.problem


def test_the_test_for_leading_spaces_is_repeated_if_it_is_inconclusive() -> None:
    texts = Texts(client=Engine(strips=True))  # type: ignore[arg-type]
    texts.load([4, 2])
    texts.load([1, 3])
    assert [texts.of(id) for id in (2, 1, 3)] == ["b", " a", " c"]
