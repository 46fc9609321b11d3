# SPDX-License-Identifier: Apache-2.0
"""The timeouts of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timeouts:
    """Seconds: `total` from the first byte of a request to the last of its reply, `connect` for a new connection.

    None is no limit. Other values must be positive: with 0 http.client would not wait, and aiohttp would have no limit.
    """

    total: float | None
    connect: float | None

    def __post_init__(self) -> None:
        for name, seconds in (("timeout", self.total), ("connect_timeout", self.connect)):
            if seconds is not None and not seconds > 0:
                raise ValueError(f"{name} must be more than 0 seconds or None, not {seconds}")
