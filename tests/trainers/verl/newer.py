# SPDX-License-Identifier: Apache-2.0
"""Batches of verl's newer trainer: its manager and workers on ray, and TransferQueue."""

from __future__ import annotations

import time
from typing import Any

import lab
import numpy as np
import shaped
import transfer_queue as tq
from account import Account
from omegaconf import DictConfig
from rows import Row, as_recorded
from tensordict import TensorDict
from tokentap import Client
from transformers import AutoTokenizer
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ
from verl.utils import tensordict_utils

FIELDS = ["prompts", "responses", "response_mask", "rollout_entropy", "rollout_log_probs", "extra_fields"]
STEP = 3


def check(
    config: DictConfig, client: Client, account: Account, questions: list[str], loop: str, think: tuple[int, int]
) -> None:
    """Samples each question `rollout.n` times: the queue has the data that tokentap recorded, and EGPO shapes it."""
    tq.init(config.transfer_queue)
    try:
        manager, batch = AgentLoopManagerTQ.create(config=config, llm_client=None), prompts(questions, loop)
        # the trainer creates the partition before workers write to it concurrently
        pending = {"is_prompt": True, "status": "pending", "global_steps": STEP}
        tq.kv_batch_put(keys=list(batch["uid"]), partition_id="train", tags=[pending] * len(batch))
        manager.generate_sequences(batch)
        tags = dict(sorted(finished(len(questions) * config.actor_rollout_ref.rollout.n).items()))
        stored = tq.kv_batch_get(keys=list(tags), partition_id="train", select_fields=FIELDS)
        found = [row(stored, at) for at in range(len(tags))]
        shaped_problems, note = shaped.check(config, tags, found, think)
    finally:
        tq.close()
    problems = [one for each in found for one in as_recorded(each, client)]
    problems += [f"{one.dtype}" for one in stored["rollout_entropy"] if str(one.dtype) != "torch.float32"]
    account.check(f"newer trainer, {loop}: as recorded", problems, f"{len(tags)} samples")
    tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
    # keys are {uid}_{sample}_{output}, and uids count the questions
    asked = [questions[int(key.split("_")[0].removeprefix("group-"))] for key in tags]
    problems = [
        f"{key} does not have the prompt {question!r}"
        for key, question, each in zip(tags, asked, found, strict=True)
        if question not in tokenizer.decode(each.prompt)
    ]
    account.check(f"newer trainer, {loop}: each under the uid of its prompt", problems, f"{sorted(tags)}")
    # the weights of step 2 are used for sampling in step 3
    seen = {tag[f"{end}_global_steps"] for tag in tags.values() for end in ("min", "max")}
    account.check(f"newer trainer, {loop}: global steps", [] if seen == {STEP - 1} else [str(seen)])
    account.check(f"newer trainer, {loop}: EGPO", shaped_problems, note)


def row(stored: TensorDict, at: int) -> Row:
    """A sample of the queue."""
    column = {name: stored[name][at] for name in FIELDS[:-1]}
    ids = (column[name].tolist() for name in ("prompts", "responses", "response_mask"))
    session = tensordict_utils.get_non_tensor_data(stored[at], "extra_fields", {})["tokentap_session"]
    return Row(*ids, column["rollout_entropy"].numpy(), column["rollout_log_probs"].numpy(), session)


def prompts(questions: list[str], loop: str) -> TensorDict:
    """The same form as the trainer creates."""
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
    """The tags of this many samples; the queue has no event, so it is polled."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        tags: dict[str, dict[str, Any]] = tq.kv_list(partition_id="train").get("train", {})
        failed = [key for key, tag in tags.items() if tag.get("status") == "failure"]
        if failed:
            raise RuntimeError(f"verl could not roll out {failed}; see the log of its workers")
        samples = {key: tag for key, tag in tags.items() if tag.get("status") == "success"}
        if len(samples) == count:
            return samples
        time.sleep(0.2)
    raise TimeoutError(f"{len(samples)} of {count} samples after {seconds} s: {tags}")
