# SPDX-License-Identifier: Apache-2.0
"""Pads prompts of different lengths to one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ._sample import Ids


def left_padded(prompts: Sequence[Ids], length: int | None, pad_id: int) -> Ids:
    """[B, P], padded with `pad_id` on the left; P is `length`, or the next power of two if a prompt is longer.

    As in tunix's samplers, a prompt that is too long is not truncated; the array becomes wider.
    """
    longest = max(len(prompt) for prompt in prompts)
    width = length if length is not None and length >= longest else 1 << max(longest - 1, 0).bit_length()
    padded = np.full((len(prompts), width), pad_id, dtype=np.int32)
    for row, prompt in zip(padded, prompts, strict=True):
        row[width - len(prompt) :] = prompt
    return padded
