"""Pictures of a rollout, in the form in which SGLang and tokentap accept them."""

from __future__ import annotations

import asyncio
import base64
import io
from collections.abc import Sequence
from typing import Any


class Encoder:
    """Encodes each picture once: a rollout sends those of all earlier turns again."""

    def __init__(self) -> None:
        # an object that is kept here keeps its id
        self._known: dict[int, tuple[Any, str]] = {}

    async def data_uris(self, pictures: Sequence[Any]) -> list[str]:
        """The pictures as data URIs."""
        for picture in pictures:
            if id(picture) not in self._known:
                self._known[id(picture)] = picture, await asyncio.to_thread(data_uri, picture)
        return [self._known[id(picture)][1] for picture in pictures]


def data_uri(picture: Any) -> str:
    """A PIL picture as PNG, which keeps its pixels."""
    out = io.BytesIO()
    picture.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def collapsed(ids: Sequence[int], placeholder: int) -> list[int]:
    """The ids with one placeholder for each picture: verl's are those that its processor has expanded.

    Pictures are told apart by the tokens between them.
    """
    starts = zip(ids, [None, *ids][: len(ids)], strict=True)
    return [one for one, before in starts if one != placeholder or before != placeholder]
