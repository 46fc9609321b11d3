# SPDX-License-Identifier: Apache-2.0
"""Converts a tunix `RolloutConfig` to SGLang's `sampling_params`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

# The trainer divides its logits by the temperature of its RolloutConfig, pads to its max_tokens_to_generate and
# repeats prompts itself: it would not notice another value at the engine.
OF_CONFIG = {
    "max_new_tokens": "RolloutConfig.max_tokens_to_generate",
    "temperature": "RolloutConfig.temperature",
    "top_p": "RolloutConfig.top_p",
    "top_k": "RolloutConfig.top_k",
    "stop_token_ids": "RolloutConfig.eos_tokens",
    "sampling_seed": "RolloutConfig.seed",
    "n": "num_generations of the learner's config, which repeats each prompt",
}


class Config(Protocol):
    """The fields of `RolloutConfig` about sampling."""

    max_tokens_to_generate: int
    temperature: float
    top_p: float | None
    top_k: int | None
    eos_tokens: list[int] | None


def extra(params: Mapping[str, Any]) -> dict[str, Any]:
    """Fields that `RolloutConfig` lacks, such as `min_p`; raises ValueError for one that it has."""
    for name, place in OF_CONFIG.items():
        if name in params:
            raise ValueError(f"sampling_params: {name} is set by {place}")
    return dict(params)


def sampling_params(config: Config, eos_id: int, seed: int | None) -> dict[str, Any]:
    """The fields for one sample; fields that are None in the config are left to the server."""
    stops = config.eos_tokens
    params = {
        "max_new_tokens": int(config.max_tokens_to_generate),
        "temperature": float(config.temperature),
        "top_p": None if config.top_p is None else float(config.top_p),
        "top_k": None if config.top_k is None else int(config.top_k),
        # as in tunix's samplers: the config's ids replace the tokenizer's
        "stop_token_ids": [eos_id] if stops is None or len(stops) == 0 else [int(token) for token in stops],
        "sampling_seed": seed,
    }
    return {name: value for name, value in params.items() if value is not None}


def seed_of(words: Sequence[int], number: int) -> int:
    """The seed of the sample with this number, 31 bits.

    tunix has one seed for a whole run. If each request had that seed, a server that honours seeds would return the same
    tokens for every sample of a group.
    """
    (drawn,) = np.random.SeedSequence([*words, number]).generate_state(1, np.uint32)
    return int(drawn >> 1)
