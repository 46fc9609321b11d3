# SPDX-License-Identifier: Apache-2.0
"""EGPO in verl: GRPO's advantages, shaped by entropy, between the rewards and the update."""

from __future__ import annotations

from typing import Any

from verl import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.ray_trainer import compute_advantage

from tokentap.verl import shape_advantages


def advantages(data: DataProto, **options: Any) -> DataProto:
    """`data` has `token_level_rewards`, `uid` and tokentap's `rollout_entropy`; `options` go to `shape_advantages`."""
    return shape_advantages(compute_advantage(data, AdvantageEstimator.GRPO), **options)
