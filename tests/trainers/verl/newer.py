"""verl's newer trainer's way to a batch: its manager and workers on ray, and TransferQueue."""

from __future__ import annotations

import time
from typing import Any

import lab
import numpy as np
import transfer_queue as tq
from account import Account
from omegaconf import DictConfig
from rows import Row, as_recorded
from tensordict import TensorDict
from tokentap import Client
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils

FIELDS = ["prompts", "responses", "response_mask", "rollout_entropy", "rollout_log_probs", "extra_fields"]
STEP = 3


def check(config: DictConfig, client: Client, account: Account, questions: list[str], loop: str) -> None:
    """Each question `rollout.n` times; what the queue then holds is what tokentap recorded."""
    tq.init(config.transfer_queue)
    try:
        manager, batch = AgentLoopManagerTQ.create(config=config, llm_client=None), prompts(questions, loop)
        # the trainer makes the partition, before workers write to it side by side
        pending = {"is_prompt": True, "status": "pending", "global_steps": STEP}
        tq.kv_batch_put(keys=list(batch["uid"]), partition_id="train", tags=[pending] * len(batch))
        manager.generate_sequences(batch)
        tags = finished(len(questions) * config.actor_rollout_ref.rollout.n)
        stored = tq.kv_batch_get(keys=list(tags), partition_id="train", select_fields=FIELDS)
    finally:
        tq.close()
    problems = []
    for at in range(len(tags)):
        column = {name: stored[name][at] for name in FIELDS[:-1]}
        if str(column["rollout_entropy"].dtype) != "torch.float32":
            problems.append(f"{column['rollout_entropy'].dtype}")
        ids = {name: column[name].tolist() for name in ("prompts", "responses", "response_mask")}
        session = tensordict_utils.get_non_tensor_data(stored[at], "extra_fields", {})["tokentap_session"]
        numbers = (column["rollout_entropy"].numpy(), column["rollout_log_probs"].numpy())
        row = Row(ids["prompts"], ids["responses"], ids["response_mask"], *numbers, session)
        problems += as_recorded(row, client)
    account.check(f"newer trainer, {loop}: as recorded", problems, f"{len(tags)} samples")
    # weights of step 2 sample in step 3
    seen = {tag[f"{end}_global_steps"] for tag in tags.values() for end in ("min", "max")}
    account.check(f"newer trainer, {loop}: global steps", [] if seen == {STEP - 1} else [str(seen)])


def prompts(questions: list[str], loop: str) -> TensorDict:
    """As the trainer makes them of its data."""
    batch = tensordict_utils.get_tensordict(
        {
            "raw_prompt": lab.objects([[{"role": "user", "content": question}] for question in questions]),
            "uid": lab.objects([f"group-{at}" for at in range(len(questions))]),
            "index": np.arange(len(questions)),
            "agent_name": lab.objects([loop] * len(questions)),
        }
    )
    tensordict_utils.assign_non_tensor_data(batch, "global_steps", STEP)
    return batch


def finished(count: int, seconds: float = 60.0) -> dict[str, dict[str, Any]]:
    """The tags of this many samples; the queue has no event, so it is asked until they are there."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tags: dict[str, dict[str, Any]] = tq.kv_list(partition_id="train").get("train", {})
        failed = [key for key, tag in tags.items() if tag.get("status") == "failure"]
        if failed:
            raise RuntimeError(f"verl could not roll out {failed}; its workers' log says why")
        samples = {key: tag for key, tag in tags.items() if tag.get("status") == "success"}
        if len(samples) == count:
            return samples
        time.sleep(0.2)
    raise TimeoutError(f"{len(samples)} of {count} samples after {seconds} s: {tags}")
