# SPDX-License-Identifier: Apache-2.0
"""A rollout engine for tunix's `RLCluster`: SGLang behind tokentap, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sample import EntropyMissing, Sample, SampleUnusable
from ._weights import Saver, WeightsNotUpdated

if TYPE_CHECKING:
    from ._rollout import TokentapRollout, TokentapRolloutOutput

__all__ = [
    "EntropyMissing",
    "Sample",
    "SampleUnusable",
    "Saver",
    "TokentapRollout",
    "TokentapRolloutOutput",
    "WeightsNotUpdated",
]


def __getattr__(name: str) -> Any:
    # the rollout derives from a class of tunix; the other exports need neither tunix nor jax
    if name in ("TokentapRollout", "TokentapRolloutOutput"):
        from . import _rollout

        return getattr(_rollout, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
