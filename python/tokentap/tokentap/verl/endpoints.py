"""The tokentaps that a worker's rollouts go to, one beside each SGLang."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from ..aio import AsyncClient

BASE_URL, CONTROL_URL, CONTROL_TOKEN = "TOKENTAP_BASE_URL", "TOKENTAP_CONTROL_URL", "TOKENTAP_CONTROL_TOKEN"

Urls = str | Sequence[str] | None


@dataclass(frozen=True)
class Addresses:
    """Base URLs, and as many control URLs or none."""

    base: tuple[str, ...]
    control: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.base:
            raise ValueError(
                f"no tokentap: say base_url in the agent loop's config, or {BASE_URL}=http://host:port,..."
            )
        if self.control and len(self.control) != len(self.base):
            raise ValueError(f"{len(self.control)} control URLs for {len(self.base)} base URLs")

    @classmethod
    def of(cls, base_url: Urls, control_url: Urls) -> Addresses:
        """What the config says, else the environment; several are a list, or one text with commas."""
        return cls(_listed(base_url, BASE_URL), _listed(control_url, CONTROL_URL))


def _listed(urls: Urls, variable: str) -> tuple[str, ...]:
    said = os.environ.get(variable, "") if urls is None else urls
    parts = said.split(",") if isinstance(said, str) else said
    return tuple(part.strip() for part in parts if part.strip())


@dataclass
class Endpoint:
    """One tokentap; `rollouts` is how many of this process are under way there."""

    client: AsyncClient
    has_control: bool
    rollouts: int = 0


@dataclass
class Endpoints:
    """The tokentaps of these addresses, for one event loop.

    A rollout stays with the one it began with: there is its session, and behind it the engine that holds its prefix.
    """

    addresses: Addresses
    all: list[Endpoint] = field(default_factory=list)

    def __post_init__(self) -> None:
        controls = self.addresses.control or (None,) * len(self.addresses.base)
        token = os.environ.get(CONTROL_TOKEN)
        for base, control in zip(self.addresses.base, controls, strict=True):
            # verl waits for a response as long as it takes; a limit would sample a long one again and again
            client = AsyncClient(base, control, control_token=token, timeout=None)
            self.all.append(Endpoint(client, control is not None))

    @contextmanager
    def rollout(self) -> Iterator[Endpoint]:
        """The one with the fewest rollouts of this process; one of several by lot, as workers do not see each other."""
        fewest = min(endpoint.rollouts for endpoint in self.all)
        chosen = random.choice([endpoint for endpoint in self.all if endpoint.rollouts == fewest])
        chosen.rollouts += 1
        try:
            yield chosen
        finally:
            chosen.rollouts -= 1

    async def close(self) -> None:
        """Closes the connections; later rollouts open new ones."""
        await asyncio.gather(*(endpoint.client.close() for endpoint in self.all))


# verl makes an agent loop for each rollout; connections and counts outlive it, and belong to the event loop.
_shared: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Addresses, Endpoints]] = WeakKeyDictionary()


def shared(addresses: Addresses) -> Endpoints:
    """The endpoints of the running event loop."""
    mine = _shared.setdefault(asyncio.get_running_loop(), {})
    if addresses not in mine:
        mine[addresses] = Endpoints(addresses)
    return mine[addresses]


async def close() -> None:
    """Closes all connections of the running event loop; for a program that goes on after its last rollout."""
    for endpoints in _shared.pop(asyncio.get_running_loop(), {}).values():
        await endpoints.close()
