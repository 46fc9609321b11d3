"""Where a server is, and the token it wants; checked once for both clients."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}

# What a header can carry, without a blank at either end.
TOKEN = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True)
class Address:
    """A base URL in its parts; `path` is what stands before each target, without a slash at its end."""

    scheme: str
    # Without the brackets of an IPv6 address.
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, base_url: str) -> Address:
        """The address; ValueError for what can never be asked, so that it is not asked again and again."""
        expected = f"a base URL like http://127.0.0.1:30001, not {base_url!r}"
        if re.search(r"[^!-~]", base_url):
            raise ValueError(expected)
        try:
            url = urlsplit(base_url)
            host, port = url.hostname, url.port
            (host or "").encode("idna")
        except ValueError as error:
            raise ValueError(f"{expected}: {error}") from error
        if url.scheme not in PORTS or not host or port == 0:
            raise ValueError(expected)
        if "?" in base_url or "#" in base_url or "@" in url.netloc:
            raise ValueError(f"{expected}: no query, no fragment, no user")
        return cls(url.scheme, host, port or PORTS[url.scheme], url.path.rstrip("/"))

    @property
    def base(self) -> str:
        """The URL again, to which a target is appended."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def check_token(token: str | None) -> str | None:
    """The token; ValueError for one that no header can carry."""
    if token is not None and not TOKEN.fullmatch(token):
        raise ValueError("a token is of ASCII letters, digits and signs, without a blank or a line end around it")
    return token
