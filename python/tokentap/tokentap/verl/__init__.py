"""An adapter for verl: its agent loops generate through tokentap, and the batch has `rollout_entropy`.

The names below are imported on first access, because they import verl. The rest of the package does not need verl.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOMES = {
    "AgentLoopManager": "manager",
    "AgentLoopWorker": "manager",
    "CheckpointManager": "checkpoint",
    "EgpoRow": "egpo",
    "SingleTurnAgentLoop": "loops",
    "ToolAgentLoop": "loops",
    "attach": "batch",
    "shape_advantages": "egpo",
    "shape_row": "egpo",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
