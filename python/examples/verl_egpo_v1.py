"""EGPO in verl's newer trainer: its synchronous one, whose advantages are shaped by the entropy of the thinking.

With this file on PYTHONPATH everywhere, VERL_USE_EXTERNAL_MODULES=verl_egpo_v1 and `trainer.v1.trainer_mode=egpo`; the
estimator stays `algorithm.adv_estimator=grpo`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import transfer_queue as tq
from tensordict import TensorDict
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer

from tokentap.verl import EgpoRow, shape_row

FIELDS = ["prompts", "responses", "response_mask", "rollout_entropy"]


@register_trainer("egpo")
class EgpoTrainer(PPOTrainerSync):
    """verl's `sync`; `options` are shape_row's."""

    options: ClassVar[dict[str, Any]] = {"lam": 0.4, "alpha": 2.0}

    def __init__(self, config: Any) -> None:
        # the name found this class; verl asks by the name `sync` whether a trainer is a synchronous one
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)

    def _compute_advantage(self, batch: tq.KVBatchMeta, metrics: dict[str, Any]) -> tq.KVBatchMeta:
        """verl's, and then these shaped; the mask is read before, as rollout correction takes tokens out of it."""
        where = {"keys": batch.keys, "partition_id": batch.partition_id}
        sampled = tq.kv_batch_get(**where, select_fields=FIELDS)
        done = super()._compute_advantage(batch, metrics)
        plain = tq.kv_batch_get(**where, select_fields=["advantages", "response_mask"])
        shaped = []
        for at, tag in enumerate(batch.tags):
            advantages = plain["advantages"][at]
            # rows that verl adds to fill a batch have the entropies of another
            if not tag.get("is_padding"):
                row = EgpoRow(*(sampled[name][at] for name in FIELDS))
                advantages = shape_row(row, advantages, plain["response_mask"][at], **self.options)
            shaped.append(advantages)
        nested = torch.nested.as_nested_tensor(shaped, layout=torch.jagged)
        tq.kv_batch_put(**where, fields=TensorDict({"advantages": nested}, batch_size=len(batch)))
        return done
