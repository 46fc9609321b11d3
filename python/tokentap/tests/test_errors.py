"""Errors can be pickled, so that a process pool returns the error that was raised."""

from __future__ import annotations

import pickle

import pytest

import tokentap
from tokentap import (
    BinaryNotFound,
    ConnectionFailed,
    HttpError,
    Interrupted,
    SpanMismatch,
    StartFailed,
    Undecodable,
    UnknownSettings,
)
from tokentap._errors import ContextLengthExceeded, Throttled, TokentapError

MADE: list[Exception] = [
    TokentapError("a", status=418, body="b"),
    HttpError("a", status=400, body='{"error":{"code":"c"}}'),
    ContextLengthExceeded("a", status=400, body="exceed"),
    Throttled("a", status=503, body="b"),
    ConnectionFailed("a", sent=True),
    ConnectionFailed("a", sent=False),
    Interrupted("a", status=200, body="b"),
    Undecodable("a", status=200, body="b", lasting=True),
    Undecodable("a", status=200, body="b"),
    BinaryNotFound("a"),
    StartFailed("a", exit_code=64, log="b"),
    SpanMismatch("a"),
    UnknownSettings("a"),
]


def test_every_public_error_is_tested() -> None:
    public = [getattr(tokentap, name) for name in tokentap.__all__]
    errors = {one for one in public if isinstance(one, type) and issubclass(one, Exception)}
    assert errors == {type(error) for error in MADE}


@pytest.mark.parametrize("error", MADE, ids=lambda error: type(error).__name__)
def test_an_error_can_be_pickled(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert (str(copy), vars(copy)) == (str(error), vars(error))
