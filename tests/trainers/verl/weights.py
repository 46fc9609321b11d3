"""New weights in verl's older trainer: its checkpoint manager, with a trainer that has none to send."""

from __future__ import annotations

import os
from typing import Any
from unittest.mock import patch

import ray
from account import Account
from engines import Addresses
from tokentap import Client
from tokentap.verl import CheckpointManager
from verl.workers.config import CheckpointEngineConfig


class Trainer:
    """verl's worker group, as far as the `naive` backend asks it."""

    def __init__(self) -> None:
        self.updated: list[int] = []

    def update_weights(self, global_steps: int, mode: str) -> Any:
        """Counts."""
        self.updated.append(global_steps)
        return ray.put(mode)


def check(at: Addresses, client: Client, account: Account, step: int) -> None:
    """After an update tokentap's policy has the name of the step."""
    trainer = Trainer()
    with patch.dict(os.environ, TOKENTAP_BASE_URL=at.base, TOKENTAP_CONTROL_URL=at.control):
        CheckpointManager(CheckpointEngineConfig(backend="naive"), trainer, []).update_weights(step)
    version = client.policy()["version"]
    problems = [] if (trainer.updated, version) == ([step], str(step)) else [f"{trainer.updated}, {version}"]
    account.check("new weights: their step is the policy's version", problems)
