# SPDX-License-Identifier: Apache-2.0
"""verl's agent loop manager and worker with `rollout_entropy` in their batches; for verl's older trainer.

`actor_rollout_ref.rollout.agent.agent_loop_manager_class` names the manager. Its workers also register the agent loops.
"""

from __future__ import annotations

from typing import Any

import ray
from verl.experimental.agent_loop import agent_loop

from . import registry
from ._batch import attach

__all__ = ["AgentLoopManager", "AgentLoopWorker", "registry"]


class AgentLoopWorker(agent_loop.AgentLoopWorker):  # type: ignore[misc]
    """verl's worker; every row of its batches must come from an agent loop of `loops`."""

    async def generate_sequences(self, batch: Any) -> Any:
        """As in verl, with `rollout_entropy`, float32 [B, response_length], in the batch."""
        return attach(await super().generate_sequences(batch))


class AgentLoopManager(agent_loop.AgentLoopManager):  # type: ignore[misc]
    """verl's manager, with these workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.agent_loop_workers_class = ray.remote(AgentLoopWorker)
        super().__init__(*args, **kwargs)
