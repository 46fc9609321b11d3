# SPDX-License-Identifier: Apache-2.0
"""A pool of HTTP/1.1 connections to one server for the tasks of an event loop, by aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING

from ._address import Address
from ._call import Reply
from ._errors import ConnectionFailed, Interrupted
from ._timeouts import Timeouts

if TYPE_CHECKING:
    import aiohttp

# The limit of strands-sglang and the OpenAI clients. More requests wait for a connection, which uses up their timeout.
CONNECTIONS = 1000
PIECE = 1 << 16


class AsyncConnections:
    """Connections to an address; they belong to the event loop of the first request, until they are closed."""

    def __init__(self, address: Address, timeouts: Timeouts) -> None:
        self._base = address.base
        self._timeouts = timeouts
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    async def close(self) -> None:
        """Closes the connections; a later request opens new ones."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def exchange(self, method: str, target: str, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """A request and its whole reply."""
        async with self.open(method, target, headers, body) as exchange:
            return await exchange.reply()

    @asynccontextmanager
    async def open(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> AsyncIterator[AsyncExchange]:
        """Sends a request and yields its reply; closes the connection if the block ends before the reply."""
        from yarl import URL

        # the target is already percent-encoded
        url = URL(self._base + target, encoded=True)
        request = self._opened().request(method, url, data=body, headers=headers, allow_redirects=False)
        with failures():
            response = await request
        async with response:
            yield AsyncExchange(response)

    def _opened(self) -> aiohttp.ClientSession:
        loop = asyncio.get_running_loop()
        if self._session is not None and self._loop is not loop:
            raise RuntimeError("an AsyncClient belongs to one event loop: make one in each loop, with `async with`")
        if self._session is None:
            import aiohttp

            self._loop = loop
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._timeouts.total, sock_connect=self._timeouts.connect),
                connector=aiohttp.TCPConnector(limit=CONNECTIONS),
            )
        return self._session


class AsyncExchange:
    """The reply to one request."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status

    async def reply(self) -> Reply:
        """The whole reply."""
        with failures():
            body = await self._response.read()
        return Reply(self.status, {name.lower(): value for name, value in self._response.headers.items()}, body)

    async def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of the body as they arrive."""
        while True:
            with failures():
                piece = await self._response.content.read(PIECE)
            if not piece:
                return
            yield piece


@contextmanager
def failures() -> Iterator[None]:
    """Converts aiohttp's exceptions to those of this package."""
    import aiohttp

    try:
        yield
    except aiohttp.ClientConnectorError as error:
        raise ConnectionFailed(str(error), sent=False) from error
    except (TimeoutError, asyncio.TimeoutError) as error:
        sent = not isinstance(error, aiohttp.ConnectionTimeoutError)
        raise ConnectionFailed("the reply did not end within the timeout", sent=sent) from error
    except (OSError, aiohttp.ClientError) as error:
        raise Interrupted(f"the connection failed: {error!r}") from error
