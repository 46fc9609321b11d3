"""What can go wrong between a client and tokentap, and what to do about it."""

from __future__ import annotations

import json

# What SGLang says in a 400 when a prompt does not fit; the same words that strands-sglang looks for.
CONTEXT_LENGTH = ("exceed", "too long", "maximum length", "context length")


class TokentapError(Exception):
    """A call that did not give what was asked.

    `status` is that of the reply, None where there was none; `body` is its text; `hint` says what to do.
    """

    hint = "Look at the cause; nothing is known about this failure."

    def __init__(self, message: str, *, status: int | None = None, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body

    def __str__(self) -> str:
        return f"{super().__str__()} ({self.hint})"


class HttpError(TokentapError):
    """A reply with a status of 400 or more."""

    hint = "The body says what is wrong with the request."

    @property
    def code(self) -> str | None:
        """tokentap's own name of the problem, like `no_such_session`; None where the engine answered."""
        try:
            code = json.loads(self.body)["error"]["code"]
        except (ValueError, KeyError, TypeError):
            return None
        return code if isinstance(code, str) else None


class ContextLengthExceeded(HttpError):
    """The prompt, or prompt and answer together, are longer than the model's context."""

    hint = "Ask with fewer tokens; asking again does not help."


class Throttled(HttpError):
    """429 or 503: there is no room now, the engine is paused, or it is away."""

    hint = "Wait and ask again; tokentap's /readyz says when the engine answers."


class ConnectionFailed(TokentapError):
    """No connection, or no whole reply in time; `sent` says whether the request may have arrived."""

    hint = "See that tokentap runs at this address, and that `timeout` is long enough for the answer."

    # without `sent` it may have: a copy that comes out of a pickle is made so, and then given its own
    def __init__(self, message: str, *, sent: bool = True) -> None:
        super().__init__(message)
        self.sent = sent


class Interrupted(TokentapError):
    """A connection that ended before the reply did, or another failure on the way."""

    hint = "Ask again with the same session and rid: tokentap then gives the reply that was lost, if it has it."


class Undecodable(TokentapError):
    """A reply that is not what the route answers, though its status says success.

    `lasting` says that it could be read and has another shape, so that it would come again.
    """

    hint = "See that the address is tokentap's and not another server's."

    def __init__(self, message: str, *, status: int | None = None, body: str = "", lasting: bool = False) -> None:
        super().__init__(message, status=status, body=body)
        self.lasting = lasting


def of_status(status: int, body: str) -> HttpError:
    """The error of a reply of 400 or more."""
    message = f"HTTP {status}: {body}"
    if status == 400 and any(words in body.lower() for words in CONTEXT_LENGTH):
        return ContextLengthExceeded(message, status=status, body=body)
    if status in (429, 503):
        return Throttled(message, status=status, body=body)
    return HttpError(message, status=status, body=body)
