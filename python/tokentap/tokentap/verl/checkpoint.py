"""verl's checkpoint manager, which also tells each tokentap which weights the engines have; for its older trainer.

`actor_rollout_ref.rollout.checkpoint_manager_class` names it. Under verl SGLang keeps one `weight_version`, whatever
its weights, so without this a recorded session does not say which step it belongs to.
"""

from __future__ import annotations

import os
from typing import Any

from verl.checkpoint_engine import CheckpointEngineManager
from verl.utils.ray_utils import auto_await

from ..client import Client
from .endpoints import CONTROL_TOKEN, Addresses


class CheckpointManager(CheckpointEngineManager):  # type: ignore[misc]
    """verl's manager; after new weights it names their step at `/v1/policy` of each TOKENTAP_CONTROL_URL."""

    @auto_await  # type: ignore[untyped-decorator]
    async def update_weights(self, global_steps: int | None = None) -> Any:
        """As verl's; a tokentap that does not answer fails the update, because what it records would be misnamed."""
        metrics = await super().update_weights(global_steps)
        if global_steps is not None:
            for base, control in zip(*_addresses(), strict=True):
                with Client(base, control, control_token=os.environ.get(CONTROL_TOKEN)) as client:
                    client.set_policy(global_steps)
        return metrics


def _addresses() -> tuple[tuple[str, ...], tuple[str, ...]]:
    addresses = Addresses.of(None, None)
    if not addresses.control:
        raise ValueError("TOKENTAP_CONTROL_URL names no tokentap")
    return addresses.base, addresses.control
