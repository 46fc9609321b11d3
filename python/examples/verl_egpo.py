"""What a trainer of verl does between the rewards and the update, with EGPO: GRPO's advantages, shaped by entropy."""

from __future__ import annotations

from typing import Any

from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.ray_trainer import compute_advantage

from tokentap.verl import shape_advantages


def advantages(data: DataProto, **options: Any) -> DataProto:
    """`data` has `token_level_rewards`, `uid`, and from tokentap `rollout_entropy`; `options` are shape_advantages'."""
    return shape_advantages(compute_advantage(data, AdvantageEstimator.GRPO), **options)
