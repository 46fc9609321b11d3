# SPDX-License-Identifier: Apache-2.0
"""verl's newer synchronous trainers, with metrics that compare tokentap's numbers with those of the actor.

`trainer.v1.trainer_mode` is `compared` (GRPO) or `compared_egpo` (python/examples/verl_egpo_v1.py).
"""

from __future__ import annotations

import os
from typing import Any

import transfer_queue as tq
from verl.trainer.ppo.v1 import PPOTrainerSync, register_trainer
from verl_egpo_v1 import EgpoTrainer

from tokentap import Client

FIELDS = ["response_mask", "rollout_entropy", "rollout_log_probs", "entropy", "old_log_probs", "advantages", "returns"]


class Compared:
    """A mixin for a trainer; it adds `tokentap/...` to the metrics of a step."""

    def _compute_metrics(self, batch: tq.KVBatchMeta, metrics: dict[str, Any], *args: Any, **kwargs: Any) -> None:
        super()._compute_metrics(batch, metrics, *args, **kwargs)  # type: ignore[misc]
        data = tq.kv_batch_get(keys=batch.keys, partition_id=batch.partition_id, select_fields=FIELDS)
        trained = data["response_mask"].values().bool()
        of = {name: data[name].values()[trained] for name in FIELDS}
        gaps, errors = of["rollout_log_probs"] - of["old_log_probs"], of["rollout_entropy"] - of["entropy"]
        metrics |= {
            "tokentap/tokens": len(errors),
            # nats a token: tokentap's, and that of the actor's logits for the same tokens
            "tokentap/entropy": of["rollout_entropy"].mean().item(),
            "tokentap/entropy_exact": of["entropy"].mean().item(),
            "tokentap/entropy_error": errors.abs().mean().item(),
            "tokentap/logprob_gap": gaps.abs().max().item(),
            # what EGPO adds: verl's returns are GRPO's advantages
            "tokentap/bonus": (of["advantages"] - of["returns"]).abs().max().item(),
            **policy(),
        }


def policy() -> dict[str, int]:
    """The epoch and the version of the weights that SGLang has now."""
    with Client(control_url=os.environ["TOKENTAP_CONTROL_URL"]) as client:
        known = client.policy()
    return {"tokentap/epoch": known["epoch"], "tokentap/version": int(known["weight_version"])}


@register_trainer("compared")
class ComparedTrainer(Compared, PPOTrainerSync):  # type: ignore[misc]
    """verl's `sync` trainer."""

    def __init__(self, config: Any) -> None:
        # `compared` selected this class; verl recognizes a synchronous trainer by the name `sync`
        config.trainer.v1.trainer_mode = "sync"
        super().__init__(config)


@register_trainer("compared_egpo")
class ComparedEgpoTrainer(Compared, EgpoTrainer):
    """The example's trainer."""
