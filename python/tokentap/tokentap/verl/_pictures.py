# SPDX-License-Identifier: Apache-2.0
"""Pictures of a rollout, in the form in which SGLang and tokentap accept them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
from collections.abc import Sequence
from typing import Any


class Encoder:
    """Encodes each picture once: a rollout sends those of all earlier turns again."""

    def __init__(self) -> None:
        self._known: dict[tuple[object, ...], str] = {}

    async def data_uris(self, pictures: Sequence[Any]) -> list[str]:
        """The pictures as data URIs."""
        return [await asyncio.to_thread(self._data_uri, picture) for picture in pictures]

    def _data_uri(self, picture: Any) -> str:
        # an environment may draw its next screenshot into the same object
        palette = getattr(picture, "palette", None)
        colours = b"" if palette is None else bytes(palette.palette)
        pixels = hashlib.sha256(picture.tobytes())
        key = picture.mode, picture.size, colours, pixels.digest()
        if key not in self._known:
            self._known[key] = data_uri(picture)
        return self._known[key]


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
