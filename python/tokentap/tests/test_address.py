# SPDX-License-Identifier: Apache-2.0
"""Addresses and tokens: invalid ones fail at construction instead of being retried for a minute."""

from __future__ import annotations

import asyncio
import errno

import pytest
from conftest import Either
from scripted import GOOD, Scripted

from tokentap import AsyncClient, Client
from tokentap._address import Address

URLS = [
    "", "127.0.0.1:30001", "localhost:30001", "ftp://localhost:1", "http://", "http://:1", "http://127.0.0.1:99999",
    "http://127.0.0.1:0", "http://127.0.0.1:x", "http://127.0.0.1:1?a=b", "http://127.0.0.1:1?", "http://127.0.0.1:1/#a",
    "http://key@127.0.0.1:1", "http://127.0.0.1:1\n", "http://127.0.0.1 :1", "http://a..b:1", "http://[::1:1",
]  # fmt: skip


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("url", URLS)
def test_an_invalid_base_url_raises_value_error(kind: type[Client] | type[AsyncClient], url: str) -> None:
    with pytest.raises(ValueError, match="a base URL like"):
        kind(url)
    with pytest.raises(ValueError, match="a base URL like"):
        kind("http://127.0.0.1:1", url)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("token", ["key\n", "key\r\nx: y", "ключ", " key", "", "k\u00e9y"])
def test_an_invalid_token_raises_value_error(kind: type[Client] | type[AsyncClient], token: str) -> None:
    for name in ("token", "control_token"):
        with pytest.raises(ValueError, match="a token has only printable ASCII") as raised:
            kind("http://127.0.0.1:1", **{name: token})
        assert not token or token.strip() not in str(raised.value), "the message contains no secret"


def test_a_base_url_is_parsed_into_its_parts() -> None:
    assert Address.of("http://[::1]") == Address("http", "::1", 80, "")
    assert Address.of("http://[::1]:9/a/").base == "http://[::1]:9/a"
    assert Address.of("http://tokentap") == Address("http", "tokentap", 80, "")
    assert Address.of("https://tokentap/") == Address("https", "tokentap", 443, "")


def test_a_base_url_with_a_path_and_a_token_with_a_space(do: Either, scripted: Scripted) -> None:
    scripted.script(GOOD)
    scripted.data += "/below//"
    do(scripted, "generate", "a", _token="a key")
    assert [(asked.path, asked.headers["authorization"]) for asked in scripted.asked] == [
        ("/below/generate", "Bearer a key")
    ]


def test_the_default_port_is_80(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []

    def connect(address: object, *_: object) -> None:
        asked.append(address)
        raise OSError(errno.ECONNREFUSED, "refused")

    monkeypatch.setattr("socket.create_connection", connect)
    with Client("http://[::1]", None, retries=0) as client, pytest.raises(Exception, match="refused"):
        client.generate("a")
    assert asked == [("::1", 80)]


def test_a_client_in_another_event_loop_raises_runtime_error(scripted: Scripted) -> None:
    scripted.script(GOOD)
    client = AsyncClient(scripted.data, None, retries=60, pause=1.0)

    async def ask() -> list[int]:
        return (await client.generate("a")).output_ids

    assert asyncio.run(ask()) == [1, 2]
    with pytest.raises(RuntimeError, match="loop"):
        asyncio.run(ask())
    assert len(scripted.asked) == 1
