"""Which failures are worth another attempt, and how many."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .errors import ConnectionFailed, ContextLengthExceeded, HttpError, Throttled, TokentapError, Undecodable

# Says whether a call may be sent again after this error.
Rule = Callable[[TokentapError], bool]


@dataclass(frozen=True)
class Retry:
    """`retries` more attempts after the first, `pause` seconds before each; no jitter, no `Retry-After`.

    A fleet of agents beside one engine waits for a weight update or a restart, which takes about a minute; the defaults
    are those of strands-sglang.
    """

    retries: int = 60
    pause: float = 1.0

    def __post_init__(self) -> None:
        if self.retries < 0 or self.pause < 0:
            raise ValueError(f"retries and pause are not negative, not {self.retries} and {self.pause}")

    def should_retry(self, attempt: int, error: TokentapError, rule: Rule) -> bool:
        """Whether the attempt of this number, counted from 0, is followed by another."""
        return attempt < self.retries and rule(error)


def of_generation(error: TokentapError) -> bool:
    """A generation is asked again after everything but 401, 403, 404, a context that is too long and an answer of
    another shape.

    A 400 too: an engine that is reloading its weights answers so.
    """
    if isinstance(error, HttpError):
        return not isinstance(error, ContextLengthExceeded) and error.status not in (401, 403, 404)
    return not is_lasting(error)


def of_control(error: TokentapError) -> bool:
    """What only reads, or does the same when it is done twice: a refusal stays one, anything else may pass."""
    if isinstance(error, HttpError):
        return isinstance(error, Throttled) or (error.status or 0) >= 500
    return not is_lasting(error)


def of_change(error: TokentapError) -> bool:
    """What must not be done twice: again only where it certainly was not done."""
    return isinstance(error, Throttled) or (isinstance(error, ConnectionFailed) and not error.sent)


def is_lasting(error: TokentapError) -> bool:
    """Whether it is an answer that could be read, and would come again as it is."""
    return isinstance(error, Undecodable) and error.lasting
