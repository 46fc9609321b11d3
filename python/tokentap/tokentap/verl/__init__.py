# SPDX-License-Identifier: Apache-2.0
"""An adapter for verl: its agent loops generate through tokentap, and the batch has `rollout_entropy`.

The names below are imported on first access, because they import verl. The rest of the package does not need verl.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "AgentLoopManager": "_manager",
    "AgentLoopWorker": "_manager",
    "CheckpointManager": "_checkpoint",
    "EgpoRow": "_egpo",
    "MissingEntropy": "_problems",
    "SingleTurnAgentLoop": "_loops",
    "ToolAgentLoop": "_loops",
    "Unaligned": "_problems",
    "attach": "_batch",
    "shape_advantages": "_egpo",
    "shape_row": "_egpo",
}

__all__ = [
    "AgentLoopManager",
    "AgentLoopWorker",
    "CheckpointManager",
    "EgpoRow",
    "MissingEntropy",
    "SingleTurnAgentLoop",
    "ToolAgentLoop",
    "Unaligned",
    "attach",
    "shape_advantages",
    "shape_row",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
