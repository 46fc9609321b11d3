"""Which errors are retried, and how often."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import ConnectionFailed, ContextLengthExceeded, HttpError, Throttled, TokentapError, Undecodable

# Whether a call may be retried after this error.
Rule = Callable[[TokentapError], bool]


@dataclass(frozen=True)
class Retry:
    """Up to `retries` retries, `pause` seconds before each; without jitter, and `Retry-After` is ignored.

    The defaults are those of strands-sglang: together they outlast a weight update or a restart of the engine, which
    takes about a minute.
    """

    retries: int = 60
    pause: float = 1.0

    def __post_init__(self) -> None:
        if self.retries < 0 or self.pause < 0:
            raise ValueError(f"retries and pause must not be negative, but are {self.retries} and {self.pause}")

    def should_retry(self, attempt: int, error: TokentapError, rule: Rule) -> bool:
        """Whether the attempt with this number, counted from 0, is followed by a retry."""
        return attempt < self.retries and rule(error)


def of_generation(error: TokentapError) -> bool:
    """A generation: retried after all errors except 401, 403, 404, a context that is too long, and a reply of another
    shape.

    A 400 is retried because an engine that reloads its weights answers with it.
    """
    if isinstance(error, HttpError):
        return not isinstance(error, ContextLengthExceeded) and error.status not in (401, 403, 404)
    return not is_lasting(error)


def of_control(error: TokentapError) -> bool:
    """An idempotent call: retried after all errors except a refusal."""
    if isinstance(error, HttpError):
        return isinstance(error, Throttled) or (error.status or 0) >= 500
    return not is_lasting(error)


def of_change(error: TokentapError) -> bool:
    """A call that is not idempotent: retried only if it certainly had no effect."""
    return isinstance(error, Throttled) or (isinstance(error, ConnectionFailed) and not error.sent)


def is_lasting(error: TokentapError) -> bool:
    """Whether the error is a valid reply that a retry would get again."""
    return isinstance(error, Undecodable) and error.lasting
