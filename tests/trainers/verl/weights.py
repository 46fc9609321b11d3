# SPDX-License-Identifier: Apache-2.0
"""New weights in verl's older trainer: its checkpoint manager, with a trainer and engines that have none."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import ray
from account import Account
from engines import Addresses
from tokentap import Client
from tokentap.verl import CheckpointManager
from verl.checkpoint_engine import CheckpointEngineManager, CheckpointEngineRegistry
from verl.workers.config import CheckpointEngineConfig


class Trainer:
    """The methods of verl's worker groups (trainer and engines) that a weight update calls."""

    world_size = 0

    def update_weights(self, global_steps: int, mode: str | None = None) -> Any:
        """Sends no weights."""
        return ray.put(global_steps) if mode == "naive" else []

    def execute_checkpoint_engine(self, *_: Any, **__: Any) -> list[Any]:
        """No server."""
        return []


class Replica:
    """An engine of verl; `named` is the policy version at the end of its pause."""

    workers: tuple[Any, ...] = ()

    def __init__(self, client: Client) -> None:
        self._client = client
        self.named: list[str | None] = []

    async def abort_all_requests(self, reject_request: bool = False) -> None:
        """Pauses."""

    release_kv_cache = resume_kv_cache = abort_all_requests

    async def resume_generation(self) -> None:
        """Continues."""
        self.named.append(self._client.policy()["version"])


def check(at: Addresses, client: Client, account: Account, step: int) -> None:
    """After an update the version of tokentap's policy is the step. It is set before paused engines continue."""
    trainer, replica = Trainer(), Replica(client)
    # without the base URL
    control_alone = {"TOKENTAP_BASE_URL": "", "TOKENTAP_CONTROL_URL": at.control}
    with (
        patch.dict(os.environ, control_alone),
        patch.dict(CheckpointEngineRegistry._registry, none=object),
        patch.object(CheckpointEngineManager, "build_process_group"),
        patch("verl.checkpoint_engine.base.RayWorkerGroup", lambda **_: trainer),
    ):
        paused = CheckpointManager(CheckpointEngineConfig(backend="none"), trainer, [replica])
        paused.update_weights(step - 1)
        paused.resume_generation_replicas()
        CheckpointManager(CheckpointEngineConfig(backend="naive"), trainer, []).update_weights(step)
    version = client.policy()["version"]
    problems = [] if version == str(step) else [f"{version}, not {step}"]
    account.check("new weights: their step is the policy's version", problems)
    want = [str(step - 1)] * 2
    account.check("new weights: version set before engines continue", [] if replica.named == want else [str(replica.named)])
    with patch.dict(os.environ, TOKENTAP_CONTROL_URL=""):
        try:
            CheckpointManager(CheckpointEngineConfig(backend="naive"), trainer, [])
            problems = ["no error"]
        except ValueError as error:
            problems = [] if "TOKENTAP_CONTROL_URL" in str(error) else [str(error)]
    account.check("new weights: a manager without a control port is rejected early", problems)
