# SPDX-License-Identifier: Apache-2.0
"""A rollout of verl that attaches to a running SGLang: it starts no server, and new weights go to disk.

VERL_USE_EXTERNAL_MODULES names this module, and `actor_rollout_ref.rollout.name=attached` selects the rollout.
tokentap's agent loops generate; this class only loads weights, through tokentap's control port (TOKENTAP_CONTROL_URL).
`rollout.engine_kwargs.attached.folder` is the folder for weights, which SGLang must be able to read.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp.transformer_impl import FSDPEngineWithLMHead
from verl.workers.rollout import base
from verl.workers.rollout.replica import RolloutReplica, RolloutReplicaRegistry

from tokentap import AsyncClient


class Attached(base.BaseRollout):
    """The rollout in the process of the actor, with the actor's weights."""

    async def resume(self, tags: list[str]) -> None:
        """SGLang keeps its memory."""

    async def release(self) -> None:
        """SGLang keeps its memory."""

    async def update_weights(
        self, weights: Iterable[tuple[str, torch.Tensor]], *, global_steps: int | None = None, **_: Any
    ) -> None:
        """Writes the weights into a folder, loads it into SGLang as version `global_steps`, and removes it."""
        folder = Path(self.config.engine_kwargs["attached"]["folder"]) / f"weights-{global_steps}"
        folder.mkdir(parents=True)
        try:
            await asyncio.to_thread(self._write, folder, dict(weights))
            async with AsyncClient(control_url=os.environ["TOKENTAP_CONTROL_URL"], timeout=None) as client:
                reply = await client.update_weights_from_disk(folder, weight_version=global_steps)
            if not reply["success"]:
                raise RuntimeError(f"SGLang did not load the weights of step {global_steps}: {reply['message']}")
        finally:
            shutil.rmtree(folder)

    def _write(self, folder: Path, weights: dict[str, torch.Tensor]) -> None:
        if self.model_config.hf_config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
        self.model_config.hf_config.save_pretrained(folder)


class AttachedReplica(RolloutReplica):
    """A replica without servers: verl finds none to put to sleep, abort or profile."""

    async def launch_servers(self) -> None:
        """Only the address is needed."""
        self._server_address = os.environ["TOKENTAP_BASE_URL"]


RolloutReplicaRegistry.register("attached", lambda: AttachedReplica)
# verl has no function that registers a rollout class
base._ROLLOUT_REGISTRY["attached", "async"] = f"{__name__}.Attached"
EngineRegistry.register(model_type="language_model", backend="fsdp2", device="cpu")(FSDPEngineWithLMHead)
