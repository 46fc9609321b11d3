"""The errors of the client, each with a hint."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from email.utils import parsedate_to_datetime

# The characters of a reply that the text of an error has. An engine repeats what it refuses, such as 200,000 ids.
MOST_TEXT = 1000

# Parts of SGLang's message when a prompt is too long; strands-sglang looks for the same.
CONTEXT_LENGTH = ("exceed", "too long", "maximum length", "context length")


class TokentapError(Exception):
    """A call that failed.

    `status` is that of the reply, None without a reply; `body` is its text; `hint` says what to do.
    """

    hint = "Look at the cause; this failure is unknown."

    def __init__(self, message: str, *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.hint})"


class HttpError(TokentapError):
    """A reply with a status of 400 or more.

    `retry_after` is the number of seconds of its header `Retry-After`, None without one.
    """

    hint = "Change the request: a retry gets the same reply."
    retry_after: float | None = None

    @property
    def code(self) -> str | None:
        """tokentap's code of the error, such as `no_such_session`; None if the engine answered."""
        try:
            code = json.loads(self.body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None
        return code if isinstance(code, str) else None


class ContextLengthExceeded(HttpError):
    """The prompt, or prompt and answer together, are longer than the model's context."""

    hint = "Send fewer tokens; a retry does not help."


class Throttled(HttpError):
    """429 or 503: too many requests, or the engine is paused or unreachable."""

    hint = "Wait and retry; tokentap's /readyz is 200 when the engine answers."


class ConnectionFailed(TokentapError):
    """No connection, or the reply did not end within the timeout; `sent`: the request may have arrived."""

    hint = "Check that tokentap runs at this address, and that `timeout` is long enough for the reply."

    # unpickling calls this without `sent` and then sets the attribute
    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Interrupted(TokentapError):
    """A connection that ended before the reply did, or another failure on the way."""

    hint = "Retry with the same session and rid: tokentap then returns the lost reply, if it has it."


class Undecodable(TokentapError):
    """A reply with a success status that is not a reply of this route.

    `lasting`: it is valid JSON of another shape, so a retry would get the same.
    """

    hint = "Check that the address is tokentap's and not another server's."

    def __init__(self, message: str, *, status: int | None = None, body: str = "", lasting: bool = False) -> None:
        super().__init__(message, status=status, body=body)
        self.lasting = lasting


class BinaryNotFound(TokentapError):
    """No tokentap binary, or a file of this name that is another program."""

    hint = "Pass its path as binary=, or set TOKENTAP_BIN."


class StartFailed(TokentapError):
    """A tokentap that ended before it was ready, or was not ready in time.

    `exit_code` is None if it had to be stopped, and -N after signal N. `log` has the last lines of its log.
    """

    hint = "The log says why."

    def __init__(self, message: str, *, exit_code: int | None = None, log: str = "") -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.log = log


def of_status(status: int, body: str, retry_after: str | None = None) -> HttpError:
    """The error of a reply of 400 or more. `retry_after` is the value of that header."""
    kind = HttpError
    if status == 400 and any(words in body.lower() for words in CONTEXT_LENGTH):
        kind = ContextLengthExceeded
    elif status in (429, 503):
        kind = Throttled
    error = kind(f"HTTP {status}: {_text(body)}", status=status, body=body)
    if kind is HttpError:
        error.hint = _hint(error)
    if retry_after is not None:
        error.retry_after = _seconds(retry_after.strip())
    return error


def _text(body: str) -> str:
    """The message in a body of tokentap or SGLang, with tokentap's code; the body if it has none. It is bounded."""
    text = body
    with suppress(ValueError, AttributeError):
        reply = json.loads(body)
        error = reply.get("error", reply)
        message, code = (error, None) if isinstance(error, str) else (error.get("message"), error.get("code"))
        if message and isinstance(message, str):
            text = f"{message} [{code}]" if isinstance(code, str) else message
    more = len(text) - MOST_TEXT
    return text if more <= 0 else f"{text[:MOST_TEXT]}... and {more:,} more characters"


def _hint(error: HttpError) -> str:
    if error.status in (401, 403):
        return "Give the token: token= for the data port, control_token= for the control port."
    if error.status == 404 and error.code is None:
        return "The server has no such route. Check that base_url and control_url are those of tokentap's two ports."
    if error.status is not None and (error.status == 408 or error.status >= 500):
        return "The server failed: its log says why."
    return HttpError.hint


def _seconds(retry_after: str) -> float | None:
    """The time in a `Retry-After`, which is a number of seconds or a date."""
    if retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
