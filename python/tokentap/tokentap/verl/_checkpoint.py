# SPDX-License-Identifier: Apache-2.0
"""verl's checkpoint manager, which also sends the version of the weights to each tokentap; for verl's older trainer.

`actor_rollout_ref.rollout.checkpoint_manager_class` names it. verl never changes SGLang's `weight_version`, so
without this manager a recorded session does not name its step.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.ray_utils import auto_await

from .._aio import AsyncClient
from .._retry import MANY
from ._endpoints import CONTROL_TOKEN, CONTROL_URL, controls


class CheckpointManager(CheckpointEngineManager):  # type: ignore[misc]
    """verl's manager; it posts the step of new weights to `/v1/policy` of each TOKENTAP_CONTROL_URL.

    It does so before engines that were paused for the update continue, so that no token is recorded under the earlier
    step. verl's `naive` backend does not pause engines: there the step is posted after the update. Raises ValueError if
    the environment names no control port.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._controls = controls()
        if not self._controls:
            raise ValueError(f"{CONTROL_URL} names no tokentap")
        # Weights of an update in progress that were not posted yet.
        self._unnamed: int | None = None

    @auto_await  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None) -> Any:
        """As in verl; fails if a tokentap does not answer, because its records would name the wrong step."""
        self._unnamed = global_steps
        try:
            metrics = await super().update_weights(global_steps)
            await self._name()
        finally:
            self._unnamed = None
        return metrics

    @auto_await  # type: ignore[untyped-decorator]
    async def resume_generation_replicas(self) -> None:
        """As in verl; it is the last step of an update."""
        await self._name()
        await super().resume_generation_replicas()

    async def _name(self) -> None:
        step, self._unnamed = self._unnamed, None
        if step is not None:
            await asyncio.gather(*(_set_policy(control, step) for control in self._controls))


async def _set_policy(control: str, step: int) -> None:
    async with AsyncClient(control_url=control, control_token=os.environ.get(CONTROL_TOKEN), retries=MANY) as client:
        await client.set_policy(step)
