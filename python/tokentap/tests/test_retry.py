# SPDX-License-Identifier: Apache-2.0
"""Each kind of failure: its error, and the number of attempts."""

from __future__ import annotations

import json
import socket
from contextlib import ExitStack

import pytest
from conftest import Either
from scripted import GOOD, Handler, Scripted, Step, events, generated, leave, reply, tear

from tokentap import (
    AsyncClient,
    Client,
    ConnectionFailed,
    ContextLengthExceeded,
    HttpError,
    Interrupted,
    Throttled,
    TokentapError,
    Undecodable,
)

HALF = json.dumps(generated([1, 2])).encode()[:40]

# step, error, whether the call is sent again
ROWS: dict[str, tuple[Step, type[TokentapError], bool]] = {
    "not JSON": (reply(200, "<html>"), Undecodable, True),
    "no generation": (reply(200, "{}"), Undecodable, False),
    "no generation in a list": (reply(200, "[]"), Undecodable, False),
    "an error in a list": (reply(200, json.dumps([generated([1]), {"error": "x"}])), Undecodable, False),
    "another shape of rows": (
        reply(200, json.dumps(generated([1, 2], output_token_logprobs=[-1.0, -2.0]))),
        Undecodable,
        False,
    ),
    "half a character": (reply(200, b'{"text": "\xc3'), Undecodable, True),
    "400 context length": (reply(400, "the model's context length (4096)"), ContextLengthExceeded, False),
    "400 while weights change": (reply(400, "Weights are being loaded"), HttpError, True),
    "400 of tokentap": (reply(400, '{"error":{"code":"c","message":"weights are being loaded"}}'), HttpError, False),
    "400 otherwise": (reply(400, '{"error":{"message":"unexpected keyword argument"}}'), HttpError, False),
    "413 too long": (reply(413, "too long"), HttpError, False),
    **{str(status): (reply(status, "no"), HttpError, False) for status in (401, 402, 403, 404, 409, 422)},
    **{str(status): (reply(status, "wait"), Throttled, True) for status in (429, 503)},
    **{str(status): (reply(status, "?"), HttpError, True) for status in (408, 500, 502, 504)},
    "left": (leave, Interrupted, True),
    "torn body": (tear(HALF, 1000), Interrupted, True),
    "torn chunks": (tear(HALF, None), Interrupted, True),
    "torn before the first chunk": (tear(b"", None), Interrupted, True),
}


@pytest.mark.parametrize("name", ROWS)
def test_each_failure_raises_its_error_after_its_retries(
    do: Either, scripted: Scripted, pauses: list[float], name: str
) -> None:
    step, error, again = ROWS[name]
    scripted.script(step)
    with pytest.raises(error) as raised:
        do(scripted, "generate", "a", _retries=3, _pause=1.5)
    assert type(raised.value) is error
    assert len(scripted.asked) == (4 if again else 1)
    assert pauses == [1.5] * (len(scripted.asked) - 1)
    assert raised.value.hint in str(raised.value)
    assert not (again and HttpError.hint in str(raised.value)), "the hint says that a retry does not help"
    if isinstance(raised.value, HttpError):
        assert str(raised.value.status) in str(raised.value)
        assert raised.value.body


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[2]])
def test_a_temporary_failure_is_retried(do: Either, scripted: Scripted, pauses: list[float], name: str) -> None:
    scripted.script(ROWS[name][0], ROWS[name][0], GOOD)
    assert do(scripted, "generate", "a", _retries=5).output_ids == [1, 2]
    assert len(scripted.asked) == 3


def test_retries_repeat_the_body_and_the_rid(do: Either, scripted: Scripted, pauses: list[float]) -> None:
    scripted.script(leave, reply(503, "wait"), reply(200, "<"), GOOD)
    do(scripted, "generate", "a", session="s", _retries=3, _token="key")
    first = scripted.asked[0]
    assert [asked.headers.get("x-stainless-retry-count") for asked in scripted.asked] == [None, "1", "2", "3"]
    for asked in scripted.asked:
        assert (asked.path, asked.body) == ("/sessions/s/generate", first.body)
        assert asked.headers["authorization"] == "Bearer key"
    assert len(first.json()["rid"]) == 32


def test_two_calls_have_different_rids(do: Either, scripted: Scripted) -> None:
    scripted.script(GOOD)
    for _ in range(2):
        do(scripted, "generate", "a")
    assert scripted.asked[0].json()["rid"] != scripted.asked[1].json()["rid"]


def test_a_mistake_is_reported_soon(do: Either, scripted: Scripted, pauses: list[float]) -> None:
    kind = Client if do.kind == "blocking" else AsyncClient
    assert kind.__init__.__kwdefaults__ == {
        "token": None,
        "control_token": None,
        "timeout": 900.0,
        "connect_timeout": 5.0,
        "retries": None,
        "pause": 1.0,
    }
    scripted.script(reply(503, "wait"))
    with pytest.raises(Throttled):
        do(scripted, "generate", "a", _retries=None, _pause=1.0)
    assert len(scripted.asked) == 4
    assert sum(pauses) == 3


@pytest.mark.parametrize(
    ("value", "pause"),
    [
        ("7", 7.0),
        ("1", 1.5),
        ("3600", 60.0),
        ("soon", 1.5),
        ("-3", 1.5),
        ("Wed, 01 Jan 2003 00:00:00 GMT", 1.5),
        ("Wed, 01 Jan 2200 00:00:00 GMT", 60.0),
    ],
)
def test_retry_after_is_obeyed(do: Either, scripted: Scripted, pauses: list[float], value: str, pause: float) -> None:
    def busy(handler: Handler) -> None:
        handler.send_response(503)
        handler.send_header("retry-after", value)
        handler.send_header("connection", "close")
        handler.send_header("content-length", "0")
        handler.end_headers()

    scripted.script(busy, GOOD)
    do(scripted, "generate", "a", _retries=3, _pause=1.5)
    assert pauses == [pause]


def test_the_log_of_a_retry_does_not_say_that_it_is_in_vain(
    do: Either, scripted: Scripted, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    scripted.script(reply(400, '{"error":{"message":"weights are being loaded"}}'), GOOD)
    do(scripted, "generate", "a", _retries=3, _pause=0.1)
    (line,) = [record.getMessage() for record in caplog.records if record.name == "tokentap.retry"]
    assert line == (
        "/generate: retry 1 of 3 in 0.1 s: HTTP 400: weights are being loaded "
        "(Wait and retry: the engine answers again when its weights are loaded.)"
    )


def test_each_retry_is_logged(
    do: Either, scripted: Scripted, pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    scripted.script(reply(503, "wait"), leave, GOOD)
    do(scripted, "generate", "a", session="s", _retries=3, _pause=1.5)
    first, second = [record.getMessage() for record in caplog.records if record.name == "tokentap.retry"]
    assert first.startswith("/sessions/s/generate: retry 1 of 3 in 1.5 s: HTTP 503: wait")
    assert second.startswith("/sessions/s/generate: retry 2 of 3 in 1.5 s: the connection failed")


def test_a_reply_timeout_raises_connection_failed(do: Either, scripted: Scripted, pauses: list[float]) -> None:
    scripted.script(scripted.hang)
    with pytest.raises(ConnectionFailed) as raised:
        do(scripted, "generate", "a", _retries=2, _timeout=0.2)
    assert raised.value.sent
    assert len(pauses) == 2
    assert scripted.asked


def test_a_connect_timeout_raises_connection_failed(do: Either, scripted: Scripted) -> None:
    # Linux leaves connections pending while the backlog is full
    with socket.socket() as listener, ExitStack() as waiting:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        scripted.data = "http://{}:{}".format(*listener.getsockname())
        for _ in range(4):
            one = waiting.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(listener.getsockname())
        with pytest.raises(ConnectionFailed) as raised:
            do(scripted, "generate", "a", _timeout=5.0, _connect_timeout=0.2)
    assert not raised.value.sent, "nothing can have arrived, so a change may be retried"


@pytest.mark.parametrize("name", ["_timeout", "_connect_timeout"])
@pytest.mark.parametrize("seconds", [0, -1.0, float("nan")])
def test_a_timeout_must_be_positive(do: Either, scripted: Scripted, name: str, seconds: float) -> None:
    with pytest.raises(ValueError, match="more than 0 seconds"):
        do(scripted, "generate", "a", **{name: seconds})


@pytest.mark.parametrize("method", ["freeze", "delete"])
def test_a_change_that_may_have_arrived_is_not_retried(
    do: Either, scripted: Scripted, pauses: list[float], method: str
) -> None:
    scripted.script(scripted.hang)
    with pytest.raises(ConnectionFailed) as raised:
        do(scripted, method, "s", _retries=2, _timeout=0.3)
    assert raised.value.sent
    assert len(scripted.asked) == 1


def test_a_change_that_cannot_have_arrived_is_retried(do: Either, scripted: Scripted, pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        scripted.control = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConnectionFailed):
        do(scripted, "freeze", "s", _retries=2)
    assert len(pauses) == 2


def test_truncated_json_lines_are_retried(do: Either, scripted: Scripted, pauses: list[float]) -> None:
    whole = '{"cursor":"1"}\n'
    scripted.script(reply(200, whole + '{"cur'), reply(200, whole), reply(200, ""))
    assert do(scripted, "finished", _retries=1) == [{"cursor": "1"}]
    assert len(scripted.asked) == 3


def test_a_redirect_is_not_followed(do: Either, scripted: Scripted) -> None:
    def away(handler: Handler) -> None:
        handler.send_response(307)
        handler.send_header("location", "/elsewhere")
        handler.send_header("content-length", "0")
        handler.end_headers()

    scripted.script(away, GOOD)
    with pytest.raises(Undecodable) as raised:
        do(scripted, "generate", "a")
    assert raised.value.status == 307
    assert [asked.path for asked in scripted.asked] == ["/generate"]


def test_the_timeout_covers_the_body(do: Either, scripted: Scripted) -> None:
    def trickle(handler: object) -> None:
        tear(b"{", None)(handler)  # type: ignore[arg-type]
        handler.wfile.flush()  # type: ignore[attr-defined]
        scripted.released.wait(60)

    scripted.script(trickle)
    with pytest.raises(ConnectionFailed):
        do(scripted, "generate", "a", _timeout=0.2)


def test_a_refused_connection_raises_connection_failed(do: Either, scripted: Scripted, pauses: list[float]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        scripted.data = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(ConnectionFailed) as raised:
        do(scripted, "generate", "a", _retries=2)
    assert not raised.value.sent
    assert len(pauses) == 2


@pytest.mark.parametrize(
    ("step", "count"), [(leave, 1), (reply(500, "?"), 1), (reply(400, "?"), 1), (reply(503, "?"), 3)]
)
@pytest.mark.parametrize(("method", "args"), [("freeze", ["s"]), ("delete", ["s"])])
def test_a_change_is_not_retried_after_it_may_have_happened(
    do: Either, scripted: Scripted, pauses: list[float], step: Step, count: int, method: str, args: list[object]
) -> None:
    scripted.script(step)
    with pytest.raises(TokentapError):
        do(scripted, method, *args, _retries=2)
    # aiohttp sends a GET or DELETE once more by itself when it was left without an answer
    twice = step is leave and do.kind == "asyncio" and scripted.asked[0].method in ("GET", "DELETE")
    assert len(scripted.asked) == count * (2 if twice else 1)


@pytest.mark.parametrize(
    ("step", "count"), [(leave, 3), (reply(500, "?"), 3), (reply(400, "?"), 1), (reply(404, "?"), 1)]
)
@pytest.mark.parametrize(("method", "args"), [("session", ["s"]), ("samples", [["s"]]), ("set_policy", [1])])
def test_idempotent_calls_are_retried(
    do: Either, scripted: Scripted, pauses: list[float], step: Step, count: int, method: str, args: list[object]
) -> None:
    scripted.script(step)
    with pytest.raises(TokentapError):
        do(scripted, method, *args, _retries=2)
    # aiohttp sends a GET or DELETE once more by itself when it was left without an answer
    twice = step is leave and do.kind == "asyncio" and scripted.asked[0].method in ("GET", "DELETE")
    assert len(scripted.asked) == count * (2 if twice else 1)


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row[1] is not Undecodable])
def test_a_stream_is_retried_before_its_first_event(
    do: Either, scripted: Scripted, pauses: list[float], name: str
) -> None:
    step, error, again = ROWS[name]
    scripted.script(step, events(generated([1], finish="stop")))
    if again:
        assert [delta.output_ids for delta in do(scripted, "stream", "a", _retries=1)] == [[1]]
        assert [asked.headers.get("x-stainless-retry-count") for asked in scripted.asked] == [None, "1"]
    else:
        with pytest.raises(error):
            do(scripted, "stream", "a", _retries=1)
        assert len(scripted.asked) == 1


@pytest.mark.parametrize("body", [json.dumps(generated([1])), "[]", "<html>"])
def test_a_reply_that_is_not_an_event_stream_raises(do: Either, scripted: Scripted, body: str) -> None:
    scripted.script(reply(200, body))
    with pytest.raises(Undecodable, match="not an event stream") as raised:
        do(scripted, "stream", "a", _retries=3)
    assert raised.value.body == body
    assert len(scripted.asked) == 1


def test_a_stream_is_not_retried_after_its_first_event(do: Either, scripted: Scripted) -> None:
    scripted.script(events(generated([1], finish=None), done=False))
    with pytest.raises(Interrupted):
        do(scripted, "stream", "a", _retries=3)
    assert len(scripted.asked) == 1


def test_an_error_event_raises_the_error_of_its_code(do: Either, scripted: Scripted) -> None:
    scripted.script(events({"error": {"message": "longer than the context length", "code": 400}}))
    with pytest.raises(ContextLengthExceeded):
        do(scripted, "stream", "a", _retries=3)
    scripted.script(events({"error": "engine died"}), events(generated([1])))
    with pytest.raises(HttpError) as raised:
        do(scripted, "stream", "a")
    assert raised.value.status == 500
