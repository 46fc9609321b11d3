"""A rollout engine for tunix's `RLCluster`: SGLang behind tokentap, over HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .sample import EntropyMissing, Sample, SampleUnusable
from .weights import Saver, WeightsNotUpdated

if TYPE_CHECKING:
    from .rollout import TokentapRollout, TokentapRolloutOutput

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
        from . import rollout

        return getattr(rollout, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
