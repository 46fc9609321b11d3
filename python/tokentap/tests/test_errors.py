# SPDX-License-Identifier: Apache-2.0
"""Errors can be pickled, so that a process pool returns the error that was raised."""

from __future__ import annotations

import json
import pickle
import time
from email.utils import formatdate

import pytest
from conftest import Either
from scripted import Scripted, reply

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
from tokentap._errors import ContextLengthExceeded, Throttled, TokentapError, of_status

DEEP = "[" * 200_000

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


def test_the_text_of_an_error_is_short_and_its_body_is_whole() -> None:
    body = "[" + "299," * 100_000 + "]"
    error = of_status(400, body)
    assert error.body == body
    assert str(error).startswith("HTTP 400: [299,")
    assert "... and 399,002 more characters" in str(error)
    assert len(str(error)) < 1200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (
            '{"error":{"code":"no_such_session","message":"there is no session"}}',
            "there is no session [no_such_session]",
        ),
        ('{"error":{"message":"top_p must be in (0, 1]"}}', "top_p must be in (0, 1]"),
        ('{"object":"error","message":"1 validation error","code":400}', "1 validation error"),
        ('{"error":"unknown field"}', "unknown field"),
        ('{"detail":"Not Found"}', "Not Found"),
        ('{"detail":[{"loc":["body"]}]}', '{"detail":[{"loc":["body"]}]}'),
        ('{"error":{"message":5}}', '{"error":{"message":5}}'),
        ('{"error":null}', '{"error":null}'),
        ("[1]", "[1]"),
        ("<html>", "<html>"),
    ],
)
def test_the_text_of_an_error_is_the_message_of_the_body(body: str, text: str) -> None:
    error = of_status(400, body)
    assert str(error) == f"HTTP 400: {text} ({error.hint})"
    assert error.body == body


SGLANG = '{"error":{"message":"%s"}}'
SGLANG_STREAM = '{"error":{"message":"%s","type":"invalid_request_error","code":400,"retryable":false}}'

TOO_LONG = [
    # recorded from SGLang 0.5.23, SGLang 0.5.6 and sglang-jax
    "The input (3000 tokens) is longer than the model's context length (2048 tokens).",
    "Requested token count exceeds the model's maximum context length of 2048 tokens. You requested a total of 2100 "
    "tokens: 2000 tokens from the input messages and 100 tokens for the completion.",
    # from the source of SGLang
    "Input length (3000 tokens) exceeds the maximum allowed length (2048 tokens). Use a shorter input.",
    "Multimodal prompt is too long after expanding multimodal tokens.",
    "over the maximum length",
    "The number of Tokens EXCEEDS the limit",
]


@pytest.mark.parametrize("message", TOO_LONG)
@pytest.mark.parametrize("shape", [SGLANG, SGLANG_STREAM, '{"object":"error","message":"%s"}', "%s"])
def test_a_prompt_that_is_too_long_is_recognised(message: str, shape: str) -> None:
    assert type(of_status(400, shape % message)) is ContextLengthExceeded


@pytest.mark.parametrize(
    "body",
    [
        SGLANG % "max_new_tokens must not exceed 10",
        SGLANG % "unknown field foo in {'text': 'students exceeded expectations'}",
        SGLANG % "Image count 5 exceeds limit 4 per request.",
        SGLANG % "max_pixels[12845056] exceeds limit",
        '{"error":{"message":"top_p must be in (0, 1]","input":"the context length"}}',
        '{"error":{"code":"bad_request","message":"session_tags: the text is too long"}}',
        '{"error":{"code":"bad_request","message":"the context length exceeds what a token may have"}}',
    ],
)
def test_another_refusal_is_no_context_length_error(body: str) -> None:
    assert type(of_status(400, body)) is HttpError


def test_own_refusal_of_a_prompt_that_is_too_long_is_recognised() -> None:
    error = of_status(400, json.dumps({"error": {"code": "bad_request", "message": TOO_LONG[0]}}))
    assert type(error) is ContextLengthExceeded
    assert error.code == "bad_request"


@pytest.mark.parametrize(
    ("status", "body", "hint"),
    [
        (400, "bad", "Change the request"),
        (400, "Weights are being loaded", "Wait and retry"),
        (400, '{"error":{"code":"c","message":"weights are being loaded"}}', "Change the request"),
        (401, "no", "Give the token"),
        (403, "no", "Give the token"),
        (404, '{"error":{"code":"no_such_session","message":"m"}}', "Change the request"),
        (404, '{"detail":"Not Found"}', "no such route"),
        (404, '{"message":"POST /v1/policy is not served: it is a route of the control port"}', "no such route"),
        (404, '{"error":{"message":"LoRA adapter \'a\' not found"}}', "Change the request"),
        (404, "no", "Change the request"),
        (408, "?", "its log says why"),
        (500, "?", "its log says why"),
        (503, "wait", "Wait and retry"),
    ],
)
def test_the_hint_fits_the_status(status: int, body: str, hint: str) -> None:
    error = of_status(status, body)
    assert hint in error.hint
    assert pickle.loads(pickle.dumps(error)).hint == error.hint


def test_a_date_in_retry_after_is_converted_to_seconds() -> None:
    now = time.time()
    seconds = of_status(503, "wait", formatdate(now + 30, usegmt=True)).retry_after
    assert seconds is not None
    assert 20 < seconds <= 30
    assert of_status(503, "wait", "Thu, 99 Foo").retry_after is None


@pytest.mark.parametrize("value", ["²", "٣", "1e3", ""])
def test_a_retry_after_of_other_digits_is_ignored(value: str) -> None:
    assert of_status(503, "wait", value).retry_after is None


@pytest.mark.parametrize("method", ["generate", "policy"])
def test_a_refusal_with_deeply_nested_json_is_an_http_error(do: Either, scripted: Scripted, method: str) -> None:
    scripted.script(reply(400, DEEP))
    with pytest.raises(HttpError) as raised:
        do(scripted, method, *(["a"] if method == "generate" else []))
    assert raised.value.code is None
    assert (type(raised.value), raised.value.status, raised.value.body) == (HttpError, 400, DEEP)


@pytest.mark.parametrize("method", ["generate", "policy", "finished", "steps"])
def test_a_reply_with_deeply_nested_json_is_undecodable(do: Either, scripted: Scripted, method: str) -> None:
    scripted.script(reply(200, DEEP))
    with pytest.raises(Undecodable, match="nested too deeply") as raised:
        do(scripted, method, *(["a"] if method == "generate" else []), _retries=2)
    assert raised.value.lasting
    assert len(scripted.asked) == 1


def test_an_event_with_deeply_nested_json_is_undecodable(do: Either, scripted: Scripted) -> None:
    scripted.script(reply(200, f"data: {DEEP}\n\n", "text/event-stream"))
    with pytest.raises(Undecodable, match="nested too deeply"):
        do(scripted, "stream", "a")
