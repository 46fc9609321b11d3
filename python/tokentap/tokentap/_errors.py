# SPDX-License-Identifier: Apache-2.0
"""The errors of the client, each with a hint."""

from __future__ import annotations

import json
import re
import time
from email.utils import parsedate_to_datetime

# The characters of a reply that the text of an error has. An engine repeats what it refuses, such as 200,000 ids.
MOST_TEXT = 1000

# Parts of an engine's message when a prompt is too long.
CONTEXT_LENGTH = ("context length", "maximum length", "maximum allowed length", "prompt is too long")

# A number of tokens that exceeds a limit; a parameter such as `max_new_tokens` is another word.
EXCEEDED, TOKENS = re.compile(r"\bexceed"), re.compile(r"\btokens?\b")

# tokentap's own message when a prompt is too long.
OWN_CONTEXT_LENGTH = "is longer than the model's context length"


# Parts of the messages with which an engine answers 400 while its weights change; docs/decisions/export.md names the
# source of each.
TRANSIENT = ("weights are being loaded",)


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
        return _parse(self.body)[1]


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
    message, code = _parse(body)
    kind = HttpError
    if status == 400 and _is_context_length(message or body, code):
        kind = ContextLengthExceeded
    elif status in (429, 503):
        kind = Throttled
    text = f"{message} [{code}]" if message and code else message or body
    error = kind(f"HTTP {status}: {_short(text)}", status=status, body=body)
    if kind is HttpError:
        error.hint = _hint(error, message or "")
    if retry_after is not None:
        error.retry_after = _seconds(retry_after.strip())
    return error


def is_transient(error: HttpError) -> bool:
    """Whether it is a 400 of an engine that loads weights; tokentap's own refusals, which are final, have a code."""
    return error.status == 400 and error.code is None and any(words in error.body.lower() for words in TRANSIENT)


def _parse(body: str) -> tuple[str | None, str | None]:
    """The message in a body of tokentap or SGLang, and tokentap's code; None for what it does not have."""
    try:
        reply = json.loads(body)
    except (ValueError, RecursionError):
        return None, None
    error = reply.get("error", reply) if isinstance(reply, dict) else None
    if not isinstance(error, dict):
        return (error if isinstance(error, str) else None), None
    # FastAPI, which serves the routes of SGLang, calls it `detail`
    message, code = error.get("message", error.get("detail")), error.get("code")
    # SGLang's codes are numbers
    return (message if isinstance(message, str) else None), (code if isinstance(code, str) else None)


def _is_context_length(message: str, code: str | None) -> bool:
    if code is not None:
        return OWN_CONTEXT_LENGTH in message
    words = message.lower()
    if any(part in words for part in CONTEXT_LENGTH):
        return True
    return EXCEEDED.search(words) is not None and TOKENS.search(words) is not None


def _short(text: str) -> str:
    more = len(text) - MOST_TEXT
    return text if more <= 0 else f"{text[:MOST_TEXT]}... and {more:,} more characters"


def _hint(error: HttpError, message: str) -> str:
    if error.status in (401, 403):
        return "Give the token: token= for the data port, control_token= for the control port."
    if error.status == 404 and (message == "Not Found" or " is not served: " in message):
        return "The server has no such route. Check that base_url and control_url are those of tokentap's two ports."
    if error.status is not None and (error.status == 408 or error.status >= 500):
        return "The server failed: its log says why."
    if is_transient(error):
        return "Wait and retry: the engine answers again when its weights are loaded."
    return HttpError.hint


def _seconds(retry_after: str) -> float | None:
    """The time in a `Retry-After`, which is a number of seconds or a date."""
    if retry_after.isascii() and retry_after.isdigit():
        return float(retry_after)
    try:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())
    except (TypeError, ValueError):
        return None
