"""What the trainer called the weights that an engine has, as its tokentap's control port says."""

from __future__ import annotations

import logging

from ..aio import AsyncClient
from ..errors import TokentapError

LOG = logging.getLogger(__name__)

# A generation can do without a version, so it does not wait long for one; seconds.
WAIT, RETRIES, PAUSE = 3.0, 1, 0.2


class Policy:
    """`GET /v1/policy` of one tokentap; without a control URL no weights have a name."""

    def __init__(self, control_url: str | None, token: str | None) -> None:
        self._url, self._said = control_url, False
        self._client = AsyncClient(
            control_url=control_url, control_token=token, timeout=WAIT, retries=RETRIES, pause=PAUSE
        )

    async def version(self) -> str | None:
        """The name; None without a control port or a name, or where the call fails, which is logged once."""
        if self._url is None:
            return None
        try:
            version = (await self._client.policy())["version"]
        except TokentapError as error:
            if not self._said:
                LOG.warning("%s names no weights, so versions are unknown: %s", self._url, error)
                self._said = True
            return None
        return None if version is None else str(version)

    async def close(self) -> None:
        """Closes the connection; a later call opens a new one."""
        await self._client.close()
