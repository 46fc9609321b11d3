# SPDX-License-Identifier: Apache-2.0
"""The format and the size in pixels that the header of a picture declares, without decoding it.

A file of some kilobytes can decode to gigabytes, so the size is read before a picture is shown. The page has the same
rules (`pixels.js`).
"""

from __future__ import annotations

from struct import error, unpack_from
from typing import NamedTuple


class Size(NamedTuple):
    """The media type of a picture, and its width and height in pixels."""

    media_type: str
    width: int
    height: int


def size_of(data: bytes) -> Size | None:
    """The size of a PNG, JPEG, GIF, WebP or BMP; None for any other content, such as SVG, and for a damaged header."""
    for media_type, read in _FORMATS.items():
        try:
            found = read(data)
        except (error, IndexError):  # the header is cut off
            continue
        if found is not None and min(found) > 0:
            return Size(media_type, *found)
    return None


def _png(data: bytes) -> tuple[int, int] | None:
    if data[:8] != b"\x89PNG\r\n\x1a\n" or data[12:16] != b"IHDR":
        return None
    width, height = unpack_from(">II", data, 16)
    return width, height


def _jpeg(data: bytes) -> tuple[int, int] | None:
    if data[:2] != b"\xff\xd8":
        return None
    at = 2
    # a decoder would skip bytes between segments, and might find another header there
    while data[at] == 0xFF:
        kind = data[at + 1]
        if kind == 0xFF:
            at += 1
            continue
        if 0xC0 <= kind <= 0xCF and kind not in (0xC4, 0xC8, 0xCC):
            height, width = unpack_from(">HH", data, at + 5)
            return width, height
        (size,) = unpack_from(">H", data, at + 2)
        # the scans begin, the file ends, or a marker without a length
        if kind < 0xC0 or 0xD0 <= kind <= 0xDA or size < 2:
            return None
        at += 2 + size
    return None


def _gif(data: bytes) -> tuple[int, int] | None:
    """The first frame may be larger than the screen, and browsers then show the frame."""
    if data[:6] not in (b"GIF87a", b"GIF89a"):
        return None
    width, height, flags = unpack_from("<HHB", data, 6)
    at = 13 + (3 << (flags & 7) + 1 if flags & 0x80 else 0)
    while data[at] == 0x21:
        at += 2
        while data[at] > 0:
            at += data[at] + 1
        at += 1
    if data[at] != 0x2C:
        return None
    left, top, wide, high = unpack_from("<HHHH", data, at + 1)
    return max(width, left + wide), max(height, top + high)


def _webp(data: bytes) -> tuple[int, int] | None:
    if data[:4] != b"RIFF" or data[8:12] != b"WEBP":
        return None
    kind = data[12:16]
    if kind == b"VP8X":
        low_width, high_width, low_height, high_height = unpack_from("<HBHB", data, 24)
        return (high_width << 16 | low_width) + 1, (high_height << 16 | low_height) + 1
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF
    if kind != b"VP8L" or data[20] != 0x2F:
        return None
    (bits,) = unpack_from("<I", data, 21)
    return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1


def _bmp(data: bytes) -> tuple[int, int] | None:
    if data[:2] != b"BM":
        return None
    (header,) = unpack_from("<I", data, 14)
    width, height = unpack_from("<HH" if header == 12 else "<ii", data, 18)
    return abs(width), abs(height)


_FORMATS = {"image/png": _png, "image/jpeg": _jpeg, "image/gif": _gif, "image/webp": _webp, "image/bmp": _bmp}

MEDIA_TYPES = frozenset(_FORMATS)
"""The media types of the formats. None of them can have scripts or load other files."""
