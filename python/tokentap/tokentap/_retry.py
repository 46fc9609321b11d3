# SPDX-License-Identifier: Apache-2.0
"""Which errors are retried, how often and when."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

from ._errors import (
    ConnectionFailed,
    ContextLengthExceeded,
    HttpError,
    Throttled,
    TokentapError,
    Undecodable,
    is_transient,
)

LOG = logging.getLogger("tokentap.retry")

# Whether a call may be retried after this error.
Rule = Callable[[TokentapError], bool]

# The retries of a plain client, so that a mistake is reported at once.
FEW = 3

# The retries of the trainers' adapters, as in strands-sglang and slime: a second apart they outlast a weight update or
# a restart of the engine, which takes about a minute.
MANY = 60

# Seconds; a longer `Retry-After` is not obeyed in full.
LONGEST_WAIT = 60.0


@dataclass(frozen=True)
class Retry:
    """Up to `retries` retries. Each waits `pause` seconds, or for the time in `Retry-After` if that is longer, up to a
    minute; without jitter."""

    retries: int = FEW
    pause: float = 1.0

    def __post_init__(self) -> None:
        if self.retries < 0 or self.pause < 0:
            raise ValueError(f"retries and pause must not be negative, but are {self.retries} and {self.pause}")

    def wait(self, attempt: int, error: TokentapError, target: str, rule: Rule) -> float | None:
        """The seconds after which the attempt with this number, counted from 0, is repeated; logs a warning.

        None if the call is not repeated."""
        if attempt >= self.retries or not rule(error):
            return None
        named = error.retry_after if isinstance(error, HttpError) else None
        seconds = max(self.pause, min(named or 0.0, LONGEST_WAIT))
        LOG.warning("%s: retry %d of %d in %g s: %s", target, attempt + 1, self.retries, seconds, error)
        return seconds


def of_generation(error: TokentapError) -> bool:
    """A generation: retried after 408, 429 and 5xx, after failures of the connection, and after a 400 of an engine that
    loads weights. Another refusal would come again."""
    if isinstance(error, ContextLengthExceeded):
        return False
    return of_control(error) or (isinstance(error, HttpError) and is_transient(error))


def of_control(error: TokentapError) -> bool:
    """An idempotent call: retried after all errors except a refusal."""
    if isinstance(error, HttpError):
        return error.status in (408, 429) or (error.status or 0) >= 500
    return not is_lasting(error)


def of_change(error: TokentapError) -> bool:
    """A call that is not idempotent: retried only if it certainly had no effect."""
    return isinstance(error, Throttled) or (isinstance(error, ConnectionFailed) and not error.sent)


def is_lasting(error: TokentapError) -> bool:
    """Whether the error is a valid reply that a retry would get again."""
    return isinstance(error, Undecodable) and error.lasting
