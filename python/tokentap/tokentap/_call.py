# SPDX-License-Identifier: Apache-2.0
"""A request and the parser of its reply, for both clients."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, Generic, TypeVar
from urllib.parse import quote, urlencode

from ._errors import Undecodable, of_status
from ._retry import Rule, of_control

T = TypeVar("T")


@dataclass(frozen=True)
class Reply:
    """A whole reply; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    def check(self) -> None:
        """Raises the error of a status of 400 or more."""
        if self.status >= 400:
            raise of_status(self.status, self.body.decode("utf-8", "replace"), self.headers.get("retry-after"))

    def json(self) -> Any:
        """Parses the body as JSON, whatever its content type; raises `Undecodable` if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError as error:
            text = self.body.decode("utf-8", "replace")
            raise Undecodable(f"not JSON: {error}", status=self.status, body=text) from error


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request; `read` converts a reply with a status below 400 to the result."""

    method: str
    # Path and query, below the base URL.
    target: str
    read: Callable[[Reply], T]
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    # Whether it goes to the control port.
    control: bool = True
    # After which errors it may be sent again.
    again: Rule = of_control

    def answer(self, reply: Reply) -> T:
        """The result of the reply; raises the error of a failed one."""
        reply.check()
        try:
            return self.read(reply)
        except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
            text = reply.body.decode("utf-8", "replace")[:1000]
            # invalid JSON may have been truncated, so a retry can help; JSON of another shape would come again
            lasting = not isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
            problem = "JSON that is nested too deeply" if isinstance(error, RecursionError) else repr(error)
            message = f"{self.target}: {problem} in the reply"
            raise Undecodable(message, status=reply.status, body=text, lasting=lasting) from error

    def head(self, token: str | None, attempt: int) -> dict[str, str]:
        """The headers of an attempt, counted from 0."""
        head = dict(self.headers)
        if self.body is not None:
            head["content-type"] = "application/json"
        if token is not None:
            head["authorization"] = f"Bearer {token}"
        if attempt:
            # tokentap recognizes a retry by this header and an equal body
            head["x-stainless-retry-count"] = str(attempt)
        return head


def target(*parts: str, **query: object) -> str:
    """A path of these parts, percent-encoded, and a query of the arguments that are not None."""
    path = "".join(f"/{quote(part, safe='')}" for part in parts)
    texts = {True: "true", False: "false"}
    present = {name: texts[value] if isinstance(value, bool) else value for name, value in query.items()}
    present = {name: value for name, value in present.items() if value is not None}
    # a space as `%20`, which every server decodes; some take a `+` literally
    return f"{path}?{urlencode(present, quote_via=quote)}" if present else path


def encoded(body: Mapping[str, object]) -> bytes:
    """A body without the members that are None; arrays and scalars of NumPy or torch are lists and numbers in it.

    It is ASCII, so that it can also hold half of a surrogate pair. Raises ValueError for NaN and infinite numbers.
    """
    present = {name: value for name, value in body.items() if value is not None}
    try:
        return json.dumps(present, separators=(",", ":"), default=plain, allow_nan=False).encode()
    except ValueError as error:
        for place, number in numbers(present):
            if not isfinite(number):
                raise ValueError(f"{place} is {number}, which JSON does not have: give a finite number") from error
        raise


def numbers(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """The floating-point numbers in a value, each with its place, such as `groups[0].reward`."""
    if isinstance(value, float):
        yield place, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from numbers(item, f"{place}.{name}" if place else str(name))
    elif isinstance(value, list | tuple):
        for at, item in enumerate(value):
            yield from numbers(item, f"{place}[{at}]")
    elif value is not None and not isinstance(value, str | int):
        yield from numbers(plain(value), place)


def plain(value: Any) -> Any:
    """Converts a value that `json` does not know."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence):
        return list(value)
    raise TypeError(f"{type(value).__name__} in a request")
