# SPDX-License-Identifier: Apache-2.0
"""Errors as the SDK reports them, and its retries."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import openai
from conversation import exported
from recorder import Exchange, Recorder
from replies import QUESTION, build_request
from tap import Tap, soon
from ways import WAYS, StreamAssembler


@contextlib.contextmanager
def raised(kind: type[openai.APIError], words: str = "", status: int | None = None) -> Iterator[None]:
    try:
        yield
    except kind as error:
        assert words in error.message, error
        assert status is None or error.status_code == status, error
        return
    raise AssertionError(f"no {kind.__name__} {status}")


def too_long(tap: Tap) -> None:
    """A conversation that is too long is a BadRequestError with the message that agents search for, in every way of calling."""
    request = build_request(messages=[{"role": "user", "content": "word " * 100_000}])
    with tap.delivery("long") as to:
        for name, way in WAYS.items():
            try:
                way(to, request)
            except openai.BadRequestError as error:
                assert "maximum context length" in error.message, f"{name}: {error}"
                assert error.type == "BadRequestError", f"{name}: {error.body}"
            else:
                raise AssertionError(f"{name}: the conversation was accepted")


def invalid_requests(tap: Tap) -> None:
    """Requests that cannot be served fail with the reason, and leave no turn."""
    with tap.delivery("wrong", max_retries=0) as to:
        create = to.sync.chat.completions.create
        with raised(openai.BadRequestError, "Messages cannot be empty", 400):
            create(model="demo", messages=[])
        with raised(openai.BadRequestError, "temperature", 400):
            create(model="demo", messages=QUESTION, temperature=-1)
        with raised(openai.BadRequestError, "must be a string"):
            create(model="demo", messages=[{"role": "user", "content": 5}])
        for format in ({"type": "xml"}, {"type": "json_schema"}):
            with raised(openai.BadRequestError):
                create(model="demo", messages=QUESTION, response_format=format)
        with raised(openai.BadRequestError, "regex is not supported by the demo engine", 400):
            create(model="demo", messages=QUESTION, extra_body={"regex": "a+"})
        with raised(openai.BadRequestError, "send tools", 400):
            create(model="demo", messages=QUESTION, functions=[{"name": "f", "parameters": {}}])
        with raised(openai.NotFoundError, "does not exist", 404):
            to.sync.models.retrieve("another")
        with raised(openai.BadRequestError, "there is no stored response", 400):
            to.sync.responses.create(model="demo", input="Say yes.", previous_response_id="resp_00000000000000000000")
    for base in ("", "/v1/v1", "/openai/deployments/demo"):
        with openai.OpenAI(base_url=f"http://{tap.data}{base}", api_key=tap.key, max_retries=0) as client:
            with raised(openai.NotFoundError, f"the base URL of an OpenAI client is http://{tap.data}/v1", 404):
                client.chat.completions.create(model="demo", messages=QUESTION)
    with openai.OpenAI(base_url=f"http://{tap.control}/v1", api_key=tap.token, max_retries=0) as client:
        with raised(openai.NotFoundError, "--listen", 404):
            client.chat.completions.create(model="demo", messages=QUESTION)
    with tap.delivery("other", max_retries=0) as to, raised(openai.BadRequestError, "temperature", 400):
        list(to.sync.chat.completions.create(model="demo", messages=QUESTION, temperature=-1, stream=True))


def wrong_key(tap: Tap) -> None:
    """A wrong key is an AuthenticationError."""
    with tap.delivery("keys", key="wrong") as to:
        for way in WAYS.values():
            with raised(openai.AuthenticationError, status=401):
                way(to, build_request("No.<|im_end|>"))


def temporary_errors(tap: Tap) -> None:
    """A temporary error of the engine raises the SDK's exception, or is retried; after a retry the session has one turn."""
    assert tap.engine
    # tokentap itself retries a 500 without the logprobs that it forced
    refusals = [
        (503, 1, openai.InternalServerError),
        (500, 2, openai.InternalServerError),
        (429, 1, openai.RateLimitError),
    ]
    for status, times, kind in refusals:
        remaining = [times]

        def fault(exchange: Exchange, remaining: list[int] = remaining, status: int = status) -> int | None:
            if exchange.path == "/generate" and remaining[0]:
                remaining[0] -= 1
                return status
            return None

        tap.engine.fault = fault
        try:
            with tap.delivery(f"once-{status}", max_retries=0) as to, raised(kind, "not now", status):
                WAYS["create"](to, build_request("Yes.<|im_end|>"))
            remaining[0] = times
            with tap.delivery(f"again-{status}", max_retries=2) as to:
                reply = WAYS["create"](to, build_request("Yes.<|im_end|>"))
        finally:
            tap.engine.fault = lambda exchange: None
        assert reply.content == "Yes." and remaining == [0]
        (row,) = tap.rows(f"again-{status}")
        assert sum(row["loss_mask"]) == len(reply.ids) and len(tap.turns(f"again-{status}")) == 1


def lost_connections(tap: Tap) -> None:
    """The SDK retries a call whose connection is lost and marks the retry; the session records it once and continues."""
    for name in ("create", "create(stream=True)"):
        session = "lost-" + name[-5:-1].lower()
        between = Recorder(tap.data)
        between.fault = lambda exchange, between=between: "lose" if len(between.exchanges) == 1 else None
        try:
            with Tap(between.address, tap.control, tap.token, tap.key).delivery(session, max_retries=2) as to:
                reply = WAYS[name](to, build_request(max_tokens=300, extra_body={"ignore_eos": True}))
                counts = [one.headers["x-stainless-retry-count"] for one in between.exchanges]
                messages = [*QUESTION, reply.message, {"role": "user", "content": "And?"}]
                WAYS["create"](to, build_request("So.<|im_end|>", messages=messages))
        finally:
            between.close()
        assert counts == ["0", "1"], counts
        (row,) = tap.rows(session)
        outputs = exported(row)[1]
        assert [turn["cause"] for turn in row["turns"]][1:] == ["extends_length"], row["turns"]
        assert len(outputs[0]) == reply.usage.completion_tokens and sum(row["loss_mask"]) == sum(map(len, outputs)), (
            outputs
        )


def closed_streams(tap: Tap) -> None:
    """Closing a stream early aborts the generation, and its turn is not trained."""
    with tap.delivery("left") as to:
        chunks = to.sync.chat.completions.create(**build_request(max_tokens=2500, extra_body={"ignore_eos": True}), stream=True)
        assembler = StreamAssembler()
        for _, chunk in zip(range(4), chunks, strict=False):
            assembler.add(chunk)
        chunks.close()
        soon("the turn is recorded", lambda: len(tap.turns("left")) == 1)
        (turn,) = tap.turns("left")
        assert turn["fault"] == "disconnected", turn
        refused = tap.get("/v1/sessions/left/trajectories")["refused"]
        assert [one["reason"] for one in refused] == ["disconnected"], refused
        # also with the SDK's stream helper
        with to.sync.chat.completions.stream(**build_request(max_tokens=2500, extra_body={"ignore_eos": True})) as events:
            next(iter(events))
        soon("the turn is recorded", lambda: len(tap.turns("left")) == 2)
        reply = WAYS["create"](to, build_request("Still there.<|im_end|>"))
    assert reply.content == "Still there."


CHECKS = [too_long, invalid_requests, temporary_errors, lost_connections, closed_streams]
