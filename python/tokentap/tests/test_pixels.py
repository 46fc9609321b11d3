# SPDX-License-Identifier: Apache-2.0
"""The sizes that headers of pictures declare, compared with Pillow."""

from __future__ import annotations

import io
import random
import struct
import warnings

import pytest
from PIL import Image

from tokentap._pixels import size_of

FORMATS = [
    ("image/png", "PNG", {}),
    ("image/jpeg", "JPEG", {}),
    ("image/jpeg", "JPEG", {"progressive": True, "comment": b"\xff\xc0\x00\x0b\x08" + b"x" * 300}),
    ("image/gif", "GIF", {}),
    ("image/webp", "WEBP", {}),
    ("image/webp", "WEBP", {"lossless": True}),
    ("image/webp", "WEBP", {"exif": b"Exif\x00\x00MM\x00*\x00\x00\x00\x08\x00\x00\x00\x00\x00\x00"}),
    ("image/bmp", "BMP", {}),
]


def picture(kind: str, width: int, height: int, **options: object) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (9, 90, 200)).save(out, kind, **options)
    return out.getvalue()


@pytest.mark.parametrize(("media_type", "kind", "options"), FORMATS)
@pytest.mark.parametrize("size", [(1, 1), (211, 97), (3, 1000)])
def test_size_is_that_of_the_decoder(
    media_type: str, kind: str, options: dict[str, object], size: tuple[int, int]
) -> None:
    assert size_of(picture(kind, *size, **options)) == (media_type, *size)


def test_webp_of_the_kinds_is_read() -> None:
    kinds = {
        picture(kind, 20, 10, **options)[12:16] for media_type, kind, options in FORMATS if media_type == "image/webp"
    }
    assert kinds == {b"VP8 ", b"VP8L", b"VP8X"}


HTML = b"<html><script>alert(1)</script>"

REFUSED = [
    b"",
    b"\x89PNG\r\n\x1a\n" + HTML,
    b"\xff\xd8\xff" + b"<svg xmlns='http://www.w3.org/2000/svg'/>",
    b"GIF89a=1;alert(1)//".ljust(80),
    b"RIFF\0\0\0\0WEBP" + HTML,
    HTML,
    b"<svg xmlns='http://www.w3.org/2000/svg' width='1' height='1'/>",
    b"<!--" + picture("PNG", 2, 2),
    picture("PNG", 2, 2)[:20],
    picture("JPEG", 2, 2)[:20],
    # no size, and a marker without a length before it
    b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 0, 7),
    b"\xff\xd8\xff\xd9" + picture("JPEG", 2, 2)[2:],
    b"\xff\xd8\xff\xfe\0\0" + b"x" * 20,
]


@pytest.mark.parametrize("data", REFUSED)
def test_other_content_has_no_size(data: bytes) -> None:
    assert size_of(data) is None


def test_size_is_not_limited_to_what_can_be_decoded() -> None:
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 100_000, 100_000)
    assert size_of(png) == ("image/png", 100_000, 100_000)
    frame = bytearray(picture("GIF", 5, 7))
    frame[6:10] = struct.pack("<HH", 2, 3)
    assert size_of(bytes(frame)) == ("image/gif", 5, 7), "the first frame is larger than the screen"
    extended = b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6
    assert size_of(extended) == ("image/webp", 1 << 24, 1 << 24)
    flipped = bytearray(picture("BMP", 5, 7))
    flipped[22:26] = struct.pack("<i", -7)
    assert size_of(bytes(flipped)) == ("image/bmp", 5, 7)


def test_damaged_headers_have_no_size_or_that_of_the_decoder() -> None:
    own = random.Random(3)
    compared = 0
    for _ in range(20_000):
        _, kind, options = own.choice(FORMATS)
        data = bytearray(picture(kind, 17, 13, **options))
        for _ in range(own.randint(1, 3)):
            data[own.randrange(min(60, len(data)))] = own.randrange(256)
        del data[own.choice([len(data), own.randrange(len(data))]) :]
        found = size_of(bytes(data))
        assert found is None or (found.width > 0 and found.height > 0)
        if found is None or own.random() > 0.1 or found.width * found.height > 1e6:
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                image = Image.open(io.BytesIO(data), formats=[kind])
                size = image.size
                image.load()
            except (OSError, ValueError, SyntaxError, IndexError, struct.error, OverflowError):
                continue
        compared += 1
        assert found[1:] == size, bytes(data[:64])
    assert compared > 300
