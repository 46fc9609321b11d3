"""How long a request may take."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """`total` is for a request from its first byte to the reply's last, `connect` for a new connection, in seconds.

    None waits for ever. What is not positive is a ValueError: http.client would not wait at all, aiohttp for ever.
    """

    total: float | None
    connect: float | None

    def __post_init__(self) -> None:
        for name, seconds in (("timeout", self.total), ("connect_timeout", self.connect)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name}: more than 0 seconds or None, not {seconds}")
