# SPDX-License-Identifier: Apache-2.0
"""Escapes text of a model for HTML. Characters that are invisible or move others become visible glyphs."""

from __future__ import annotations

import unicodedata
from html import escape

SHOWN = 60
"""The maximum number of characters of a token; a longer one also shows its length."""

_NAMES = {
    0x00A0: "nbsp", 0x00AD: "shy", 0x061C: "alm", 0x115F: "filler", 0x1160: "filler", 0x180E: "mvs", 0x200B: "zwsp",
    0x200C: "zwnj", 0x200D: "zwj", 0x200E: "lrm", 0x200F: "rlm", 0x2028: "ls", 0x2029: "ps", 0x202A: "lre",
    0x202B: "rle", 0x202C: "pdf", 0x202D: "lro", 0x202E: "rlo", 0x2060: "wj", 0x2066: "lri", 0x2067: "rli",
    0x2068: "fsi", 0x2069: "pdi", 0x3164: "filler", 0xFEFF: "bom", 0xFFA0: "filler",
}  # fmt: skip

_RANGES = (
    (0x00, 0x20), (0x7F, 0xA0), (0xD800, 0xE000), (0x2061, 0x2070), (0xFFF0, 0xFFFC), (0xE0000, 0xE1000),
    (0xFE00, 0xFE10), (0x180B, 0x1810),
)  # fmt: skip


def glyphs(text: str, most: int = SHOWN) -> str:
    """The text as HTML, with at most `most` characters."""
    out: list[str] = []
    after_base = False
    for character in text[:most]:
        code, base = ord(character), False
        if character == "\n":
            out.append('<span class="g">↵</span>\n')
        elif character == "\t":
            out.append('<span class="g">→   </span>')
        elif code in _NAMES or any(low <= code < high for low, high in _RANGES):
            out.append(f'<span class="g odd">{_NAMES.get(code) or f"U+{code:04X}"}</span>')
        else:
            # a combining mark without a base character gets a visible one
            if not after_base and unicodedata.category(character).startswith("M"):
                out.append("◌")
            out.append(escape(character))
            base = True
        after_base = base
    if len(text) > most:
        out.append(f'<span class="g">… {len(text):,} characters</span>')
    return "".join(out)


def label(text: str, most: int = 128) -> str:
    """The same on one line, for headings."""
    return glyphs(text, most).replace("\n", "")
