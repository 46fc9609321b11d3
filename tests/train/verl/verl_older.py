# SPDX-License-Identifier: Apache-2.0
"""tokentap's agent loop manager for verl's older trainer, which also writes what it returned.

`rollout.agent.agent_loop_manager_class` is `verl_older.Manager`. The trainer gives its metrics no access to a batch.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from verl import DataProto
from verl_compared import policy

from tokentap.verl import AgentLoopManager


class Manager(AgentLoopManager):  # type: ignore[misc]
    """A line of ROLLOUTS for each batch."""

    def generate_sequences(self, prompts: DataProto) -> DataProto:
        """As in tokentap's manager."""
        data = super().generate_sequences(prompts)
        entropy, trained = data.batch["rollout_entropy"], data.batch["response_mask"].bool()
        steps = {*data.non_tensor_batch["min_global_steps"], *data.non_tensor_batch["max_global_steps"]}
        line = {
            "tokentap/tokens": int(trained.sum()),
            "tokentap/entropy": entropy[trained].mean().item(),
            "steps": sorted(steps),
            **policy(),
        }
        with Path(os.environ["ROLLOUTS"]).open("a") as file:
            print(json.dumps(line), file=file)
        return data
