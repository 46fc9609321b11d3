# SPDX-License-Identifier: Apache-2.0
"""The tokentaps of a worker's rollouts, one beside each SGLang."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from .._aio import AsyncClient
from .._retry import MANY
from ._policy import Policy

BASE_URL, TOKEN = "TOKENTAP_BASE_URL", "TOKENTAP_TOKEN"
CONTROL_URL, CONTROL_TOKEN = "TOKENTAP_CONTROL_URL", "TOKENTAP_CONTROL_TOKEN"

Urls = str | Sequence[str] | None


@dataclass(frozen=True)
class Addresses:
    """Base URLs, and the same number of control URLs or none."""

    base: tuple[str, ...]
    control: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.base:
            raise ValueError(
                f"no tokentap: set base_url in the agent loop's config, or {BASE_URL}=http://host:port,..."
            )
        if self.control and len(self.control) != len(self.base):
            raise ValueError(f"{len(self.control)} control URLs for {len(self.base)} base URLs")

    @classmethod
    def of(cls, base_url: Urls, control_url: Urls) -> Addresses:
        """From the config if it has base URLs, else from the environment; several URLs are a list, or a text with
        commas.

        The two never come from different places: the control port of another tokentap would report other weights.
        """
        if base_url is not None:
            return cls(listed(base_url), listed(control_url or ()))
        if control_url is not None:
            raise ValueError(f"control_url without base_url: set both, or {BASE_URL} and {CONTROL_URL}")
        return cls(listed(os.environ.get(BASE_URL, "")), controls())


def controls() -> tuple[str, ...]:
    """The control URLs of the environment."""
    return listed(os.environ.get(CONTROL_URL, ""))


def listed(urls: str | Sequence[str]) -> tuple[str, ...]:
    """Splits a list, or a text with commas, into URLs."""
    parts = urls.split(",") if isinstance(urls, str) else urls
    return tuple(part.strip() for part in parts if part.strip())


@dataclass
class Endpoint:
    """One tokentap; `rollouts` counts the running rollouts of this process there."""

    client: AsyncClient
    policy: Policy
    rollouts: int = 0
    # Whether the last reply named its weights, so that the policy need not be requested.
    replies_tell: bool = False

    async def close(self) -> None:
        """Closes the connections; later calls open new ones."""
        await asyncio.gather(self.client.close(), self.policy.close())


@dataclass
class Endpoints:
    """The tokentaps of these addresses, for one event loop.

    A rollout stays with its first tokentap, which stores its session and whose engine has its prefix cached.
    """

    addresses: Addresses
    all: list[Endpoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        controls = self.addresses.control or (None,) * len(self.addresses.base)
        token, control_token = os.environ.get(TOKEN), os.environ.get(CONTROL_TOKEN)
        for base, control in zip(self.addresses.base, controls, strict=True):
            # verl waits for a response without a limit; a timeout would sample a long response again and again
            client = AsyncClient(base, None, token=token, timeout=None, retries=MANY)
            self.all.append(Endpoint(client, Policy(control, control_token)))

    @contextmanager
    def rollout(self) -> Iterator[Endpoint]:
        """The tokentap with the fewest rollouts of this process; a random one of several, as workers are
        independent."""
        fewest = min(endpoint.rollouts for endpoint in self.all)
        chosen = random.choice([endpoint for endpoint in self.all if endpoint.rollouts == fewest])
        chosen.rollouts += 1
        try:
            yield chosen
        finally:
            chosen.rollouts -= 1

    async def close(self) -> None:
        """Closes the connections; later rollouts open new ones."""
        await asyncio.gather(*(endpoint.close() for endpoint in self.all))


class _OfLoop:
    """The endpoints of one event loop, closed when `asyncio.run` ends it.

    Connections can be closed only while their loop runs, and no event marks the last rollout. A loop closes its
    asynchronous generators before it ends, so a generator waits for that.
    """

    def __init__(self) -> None:
        self.all: dict[Addresses, Endpoints] = {}
        self._end = self._at_end()
        with suppress(StopIteration):
            # runs the generator to its yield, which registers it with the loop
            self._end.__anext__().send(None)

    async def _at_end(self) -> AsyncGenerator[None, None]:
        try:
            yield
        finally:
            await asyncio.gather(*(endpoints.close() for endpoints in self.all.values()))

    async def close(self) -> None:
        await self._end.aclose()


# verl makes an agent loop for each rollout. Connections and counts outlive it and belong to the event loop.
_shared: dict[asyncio.AbstractEventLoop, _OfLoop] = {}


def shared(addresses: Addresses) -> Endpoints:
    """The endpoints of the running event loop."""
    for ended in [loop for loop in _shared if loop.is_closed()]:
        _shared.pop(ended, None)
    loop = asyncio.get_running_loop()
    if loop not in _shared:
        _shared[loop] = _OfLoop()
    mine = _shared[loop].all
    if addresses not in mine:
        mine[addresses] = Endpoints(addresses)
    return mine[addresses]


async def close() -> None:
    """Closes all connections of the running event loop, for a program whose loop goes on after its last rollout."""
    ended = _shared.pop(asyncio.get_running_loop(), None)
    if ended is not None:
        await ended.close()
