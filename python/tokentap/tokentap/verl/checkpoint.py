"""verl's checkpoint manager, which also tells each tokentap which weights the engines have; for its older trainer.

`actor_rollout_ref.rollout.checkpoint_manager_class` names it. Under verl SGLang keeps one `weight_version`, whatever
its weights, so without this a recorded session does not say which step it belongs to.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.ray_utils import auto_await

from ..aio import AsyncClient
from .endpoints import CONTROL_TOKEN, CONTROL_URL, controls


class CheckpointManager(CheckpointEngineManager):  # type: ignore[misc]
    """verl's manager; it names the step of new weights at `/v1/policy` of each TOKENTAP_CONTROL_URL.

    That is done before engines that were paused for the update go on, so that nothing is sampled under the name before.
    verl's `naive` backend pauses none: there the step is named when the update has returned. ValueError where the
    environment names no control port.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._controls = controls()
        if not self._controls:
            raise ValueError(f"{CONTROL_URL} names no tokentap")
        # Weights that are on their way and have no name yet.
        self._unnamed: int | None = None

    @auto_await  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None) -> Any:
        """As verl's; a tokentap that does not answer fails the update, because what it records would be misnamed."""
        self._unnamed = global_steps
        try:
            metrics = await super().update_weights(global_steps)
            await self._name()
        finally:
            self._unnamed = None
        return metrics

    @auto_await  # type: ignore[untyped-decorator]
    async def resume_generation_replicas(self) -> None:
        """As verl's, which is the last step of an update."""
        await self._name()
        await super().resume_generation_replicas()

    async def _name(self) -> None:
        step, self._unnamed = self._unnamed, None
        if step is not None:
            await asyncio.gather(*(_set_policy(control, step) for control in self._controls))


async def _set_policy(control: str, step: int) -> None:
    async with AsyncClient(control_url=control, control_token=os.environ.get(CONTROL_TOKEN)) as client:
        await client.set_policy(step)
