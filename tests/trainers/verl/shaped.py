# SPDX-License-Identifier: Apache-2.0
"""EGPO in verl's newer trainer: the example's trainer over TransferQueue, and NumPy."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import transfer_queue as tq
import verl_egpo_v1  # noqa: F401  registers the trainer
from egpo import ALPHA, LAMBDA, by_numpy
from omegaconf import DictConfig, OmegaConf
from rows import Row
from tensordict import TensorDict
from verl.trainer.ppo.padding_utils import upsample_batch_to_divisible_size
from verl.trainer.ppo.v1 import get_trainer_cls

PARTITION, EOS = "train", 2


def check(config: DictConfig, tags: dict[str, dict[str, Any]], found: list[Row], think: tuple[int, int]) -> Any:
    """The reported statistics; `found` are the rows of `tags`, in groups of two."""
    config = copy.deepcopy(config)
    config.algorithm.adv_estimator = "grpo"
    config.trainer.v1.trainer_mode = "egpo"
    options = {"lam": LAMBDA, "alpha": ALPHA, "think_start": think[0], "think_end": think[1]}
    OmegaConf.update(config, "trainer.v1.egpo", options, force_add=True)
    rewards = [float(at % 2) / (1 + at) for at in range(len(found))]
    batch = tq.KVBatchMeta(keys=list(tags), tags=list(tags.values()), partition_id=PARTITION)
    scores = [torch.zeros(len(row.response)) for row in found]
    for score, reward in zip(scores, rewards, strict=True):
        score[-1] = reward
    put(batch, rm_scores=scores, old_log_probs=[torch.tensor(row.logprobs) for row in found])
    # padding rows have the entropies of the first row
    batch = upsample_batch_to_divisible_size(batch, len(found) + 1, EOS)
    trainer = get_trainer_cls("egpo")(config)
    trainer._compute_advantage(batch, {})
    ours = tq.kv_batch_get(keys=batch.keys, partition_id=PARTITION, select_fields=["advantages"])["advantages"]
    problems = [] if trainer.trainer_mode == "sync" else [f"the trainer mode is {trainer.trainer_mode}"]
    raised = 0
    for at, row in enumerate(found):
        group = np.array([rewards[at - at % 2], rewards[at - at % 2 + 1]])
        grpo = float((rewards[at] - group.mean()) / (group.std(ddof=1) + 1e-6))
        want, _ = by_numpy(row, grpo, think)
        raised += abs(want - grpo) > 1e-6
        if not np.allclose(ours[at].numpy(), want * np.array(row.mask), rtol=1e-5, atol=1e-6):
            problems.append(f"row {at}: {ours[at].unique().tolist()}, not {want}")
    if bool(ours[len(found)].any()):
        problems.append("a padding row has an advantage")
    if not raised:
        problems.append("no row was shaped, so nothing was compared")
    return problems, f"{len(found)} rows, {raised} shaped, {len(batch) - len(found)} padding rows"


def put(batch: tq.KVBatchMeta, **fields: list[torch.Tensor]) -> None:
    """Fields of each row, as long as its response."""
    nested = {name: torch.nested.as_nested_tensor(rows, layout=torch.jagged) for name, rows in fields.items()}
    tq.kv_batch_put(keys=batch.keys, partition_id=PARTITION, fields=TensorDict(nested, batch_size=len(batch)))
