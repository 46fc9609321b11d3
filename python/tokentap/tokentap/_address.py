# SPDX-License-Identifier: Apache-2.0
"""The address of a server, and its token; both clients validate them at construction."""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}

# The characters that a header value may have, without a space at either end.
TOKEN = re.compile(r"[!-~]([ -~]*[!-~])?")


@dataclass(frozen=True)
class Address:
    """The parts of a base URL; `path` is the prefix of each target, without a trailing slash."""

    scheme: str
    # Without the brackets of an IPv6 address.
    host: str
    port: int
    path: str

    @classmethod
    def of(cls, base_url: str) -> Address:
        """Parses a base URL; raises ValueError for an invalid one, so that it is not retried."""
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
        """The URL to which a target is appended."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


def check_token(token: str | None) -> str | None:
    """Returns the token; raises ValueError for one that a header cannot hold."""
    if token is not None and not TOKEN.fullmatch(token):
        raise ValueError("a token has only printable ASCII characters, without spaces or line breaks around it")
    return token
