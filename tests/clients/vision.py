# SPDX-License-Identifier: Apache-2.0
"""The vision model of the scripted engine: its folder, its screenshots, and how many tokens one has.

The tokenizer and the chat template are those of Qwen3-VL, and a picture has as many tokens as the processor of that
model computes. It needs only the standard library, and no code of tokentap.
"""

from __future__ import annotations

import json
import math
import random
import shutil
import struct
import zlib
from pathlib import Path

SIGNATURE = b"\x89PNG\r\n\x1a\n"
PLACEHOLDER = "<|image_pad|>"
# the side of a patch, and the patches in each direction that become one token
PATCH_PIXELS, MERGED_PATCHES = 16, 2
SIDE = PATCH_PIXELS * MERGED_PATCHES
# smaller pictures are enlarged, and larger ones are reduced
LEAST_PIXELS, MOST_PIXELS = 1 << 16, 1 << 24
PROCESSOR = {
    "image_processor_type": "Qwen2VLImageProcessorFast",
    "patch_size": PATCH_PIXELS,
    "merge_size": MERGED_PATCHES,
    "size": {"shortest_edge": LEAST_PIXELS, "longest_edge": MOST_PIXELS},
}


def folder(templates: Path) -> Path:
    """The folder of the model, without weights. `templates` is the folder in which tests/templates/fetch.py has written
    qwen3-vl."""
    model, tokenizer = templates / "model", templates / "tokenizers" / "qwen3"
    model.mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tokenizer / name, model)
    shutil.copy(templates / "qwen3-vl" / "chat_template.jinja", model)
    added = json.loads((model / "tokenizer.json").read_text())["added_tokens"]
    [placeholder] = (token["id"] for token in added if token["content"] == PLACEHOLDER)
    (model / "config.json").write_text(json.dumps({"model_type": "qwen3_vl", "image_token_id": placeholder}))
    (model / "preprocessor_config.json").write_text(json.dumps(PROCESSOR))
    return model


def screenshot(width: int, height: int, seed: int) -> bytes:
    """A PNG of random blocks."""
    pixels, side = random.Random(seed), 8
    lines = bytearray()
    for _ in range(0, height, side):
        line = b"".join(pixels.randbytes(3) * side for _ in range(0, width, side))[: 3 * width]
        lines += (b"\0" + line) * side
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(lines[: height * (1 + 3 * width)]))
    return SIGNATURE + b"".join(chunk(*of) for of in ((b"IHDR", header), (b"IDAT", data), (b"IEND", b"")))


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def size(picture: bytes) -> tuple[int, int]:
    """The width and the height of a PNG or a JPEG, in pixels."""
    if picture.startswith(SIGNATURE):
        width, height = struct.unpack(">II", picture[16:24])
        return width, height
    assert picture.startswith(b"\xff\xd8"), f"neither PNG nor JPEG: {picture[:16]!r}"
    at = 2
    # segments with their lengths; those of the markers C0 to C2 are headers of a frame
    while picture[at + 1] not in (0xC0, 0xC1, 0xC2):
        at += 2 + int.from_bytes(picture[at + 2 : at + 4], "big")
    height, width = struct.unpack(">HH", picture[at + 5 : at + 9])
    return width, height


def tokens(picture: bytes) -> int:
    """The number of tokens of a picture: both sides are rounded to multiples of the side of a token."""
    sides = size(picture)
    rounded = [max(SIDE, round(pixels / SIDE) * SIDE) for pixels in sides]
    if math.prod(rounded) < LEAST_PIXELS:
        scale = math.sqrt(LEAST_PIXELS / math.prod(sides))
        rounded = [math.ceil(pixels * scale / SIDE) * SIDE for pixels in sides]
    assert math.prod(rounded) <= MOST_PIXELS, f"a picture of {sides} pixels"
    return math.prod(rounded) // SIDE**2
