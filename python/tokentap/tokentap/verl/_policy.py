# SPDX-License-Identifier: Apache-2.0
"""The trainer's name of the engine's weights, from the control port of its tokentap."""

from __future__ import annotations

import logging

from .._aio import AsyncClient
from .._errors import TokentapError

LOG = logging.getLogger("tokentap.verl")

# Seconds; a generation does not need a version, so it does not wait long for one.
WAIT, RETRIES, PAUSE = 3.0, 1, 0.2


class Policy:
    """`GET /v1/policy` of one tokentap; without a control URL the weights have no name."""

    def __init__(self, control_url: str | None, token: str | None) -> None:
        self._url, self._said = control_url, False
        self._client = AsyncClient(
            control_url=control_url, control_token=token, timeout=WAIT, retries=RETRIES, pause=PAUSE
        )

    async def version(self) -> str | None:
        """The name; None without a control port or a name, or if the call fails, which is logged once."""
        if self._url is None:
            return None
        try:
            version = (await self._client.policy())["version"]
        except TokentapError as error:
            if not self._said:
                LOG.warning("%s does not name the weights, so versions are unknown: %s", self._url, error)
                self._said = True
            return None
        return None if version is None else str(version)

    async def close(self) -> None:
        """Closes the connection; a later call opens a new one."""
        await self._client.close()
