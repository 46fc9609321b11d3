# SPDX-License-Identifier: Apache-2.0
"""EGPO in verl's newer synchronous trainer: advantages shaped by the entropy of the thinking.

Put this file on PYTHONPATH in all processes, and set VERL_USE_EXTERNAL_MODULES=verl_egpo_v1 and
`trainer.v1.trainer_mode=egpo`. The estimator stays `algorithm.adv_estimator=grpo`. `trainer.v1.egpo` has the arguments
of `shape_row`: `+trainer.v1.egpo.lam=0.2`.
"""

from __future__ import annotations

from typing import Any

import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

from tokentap.verl import EgpoRow, shape_row

FIELDS = ["prompts", "responses", "response_mask", "rollout_entropy"]


@register_trainer("egpo")
class EgpoTrainer(PPOTrainerSync):
    """verl's `sync` trainer with shaped advantages."""

    def __init__(self, config: Any) -> None:
        # `egpo` selected this class; verl recognizes a synchronous trainer by the name `sync`
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)
        self.options = dict(config.trainer.v1.get("egpo") or {})

    def _compute_advantage(self, batch: tq.KVBatchMeta, metrics: dict[str, Any]) -> tq.KVBatchMeta:
        """Shapes verl's advantages. The mask is read before, because rollout correction removes tokens from it."""
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        sampled = tq.kv_batch_get(**where, select_fields=FIELDS)
        done = super()._compute_advantage(batch, metrics)
        plain = tq.kv_batch_get(**where, select_fields=["advantages", "response_mask"])
        shaped = []
        for at, tag in enumerate(batch.tags):
            advantages = plain["advantages"][at]
            # rows that verl adds to fill a batch have the entropies of another row
            if not tag.get("is_padding"):
                row = EgpoRow(*(sampled[name][at] for name in FIELDS))
                advantages = shape_row(row, advantages, plain["response_mask"][at], **self.options)
            shaped.append(advantages)
        nested = torch.nested.as_nested_tensor(shaped, layout=torch.jagged)
        tq.kv_batch_put(**where, fields=TensorDict({"advantages": nested}, batch_size=len(batch)))
        return done
