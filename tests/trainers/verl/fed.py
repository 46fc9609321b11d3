#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""fed.py

tokentap.transfer_queue with the real TransferQueue on ray, in front of `$TOKENTAP demo`: the queue has each finished path
once, also after a feeder ended between its put and its cursor. Prints a line per check; exit status 1 if one failed."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import engines
import numpy as np
import ray
import transfer_queue as tq
from account import Account
from tokentap import Client
from tokentap.transfer_queue import _CURSORS, Fed, Feeder, _TransferQueue, _place_of

FIELDS = ["prompts", "responses", "response_mask", "rollout_log_probs", "rollout_entropy", "rm_scores", "uid"]
SAMPLING = {"ignore_eos": True}
KILLED = 9


class Ends(_TransferQueue):
    """Ends the process where it would commit the cursor."""

    def tag(self, partition: str, key: str, tag: dict[str, Any]) -> None:
        assert partition == _CURSORS
        os._exit(KILLED)


def main() -> int:
    account = Account()
    ray.init(num_cpus=8, include_dashboard=False, object_store_memory=256 << 20, logging_level="warning")
    try:
        tq.init({"backend": {"SimpleStorage": {"num_data_storage_units": 2}}})
        with (
            engines.demo(os.environ["TOKENTAP"], "--top-logprobs", "1024") as at,
            Client(at.base, at.control) as client,
        ):
            check(client, at, account)
    finally:
        tq.close()
        ray.shutdown()
    print(f"{account.passed} ok, {len(account.failed)} FAIL")
    return int(bool(account.failed))


def check(client: Client, at: engines.Addresses, account: Account) -> None:
    """Two groups of three samples of different lengths."""
    client.set_policy("4")
    for group in range(2):
        for sample in range(3):
            name = f"g{group}_{sample}"
            sampling = {**SAMPLING, "max_new_tokens": 4 + sample}
            client.generate(input_ids=[299, 467 + group], session=name, sampling_params=sampling, return_logprob=True)
            client.reward(name, sample / 2)
            client.freeze(name)
    names = [f"g{group}_{sample}" for group in range(2) for sample in range(3)]

    # a separate process, on the same ray, that ends without committing its cursor
    command = [sys.executable, __file__, ray.get_runtime_context().gcs_address, at.base, at.control]
    code = subprocess.run(command, check=False).returncode
    keys = sorted(tq.kv_list(partition_id="train")["train"])
    account.check("a feeder ends before its cursor, after its rows", [] if code == KILLED else [f"exit status {code}"])
    found = [_place_of(key) for key in keys]
    account.check("keys", [] if found == [f"{name}.1_0" for name in names] else [str(keys)], str(keys))
    cursors = tq.kv_list(partition_id=_CURSORS) or {}
    account.check("no cursor yet", [str(cursors)] if cursors.get(_CURSORS) else [])

    # what a trainer writes stays
    tq.kv_put(key=keys[0], partition_id="train", tag={"seen": True})
    client.generate(
        input_ids=[299], session="g2_0", sampling_params={**SAMPLING, "max_new_tokens": 5}, return_logprob=True
    )
    client.reward("g2_0", 1.0)
    client.freeze("g2_0")
    names.append("g2_0")
    restarted = Feeder(client, "here").feed()
    wanted = Fed(put=1, present=6)
    account.check(
        "the next feeder puts only the new path", [] if restarted == wanted else [str(restarted)], str(restarted)
    )
    again = Feeder(client, "here").feed()
    account.check("the cursor is committed", [] if again == Fed() else [str(again)])
    tags = tq.kv_list(partition_id="train")["train"]
    account.check("no path twice", [] if len(tags) == len(names) else [str(sorted(tags))], f"{len(tags)} keys")
    kept = tags[keys[0]].get("seen") is True and tags[keys[0]].get("status") == "success"
    account.check("tags of the trainer stay", [] if kept else [str(tags[keys[0]])])
    versions = {(tag["min_global_steps"], tag["max_global_steps"]) for tag in tags.values()}
    account.check("steps", [] if versions == {(4, 4)} else [str(versions)])

    problems = []
    key_at = {_place_of(key): key for key in tags}
    for name in names:
        stored = tq.kv_batch_get(keys=[key_at[f"{name}.1_0"]], partition_id="train", select_fields=FIELDS)
        problems += as_exported(stored, client, name)
    account.check("each row equals the export of its session", problems, f"{len(names)} rows")
    keys = [key_at[f"{name}.1_0"] for name in names]
    whole = tq.kv_batch_get(keys=keys, partition_id="train", select_fields=FIELDS)
    rows = whole["responses"].unbind()
    lengths = [len(row) for row in rows]
    account.check("rows of different lengths in one batch", [] if lengths == [4, 5, 6] * 2 + [5] else [str(lengths)])


def as_exported(stored: Any, client: Client, name: str) -> list[str]:
    """The row equals that of `POST /v1/samples` in the format `verl`, which pads nothing for a single row."""
    tensors = client.samples([name]).torch().tensors
    problems = []
    for field in ("prompts", "responses", "response_mask", "rollout_log_probs", "rollout_entropy", "rm_scores"):
        ours, theirs = stored[field][0].numpy(), tensors[field][0].numpy()
        if not np.array_equal(ours, theirs):
            problems.append(f"{name} {field}: {ours}, exported {theirs}")
    uid = stored["uid"][0]
    if getattr(uid, "data", uid) != name.split("_")[0]:
        problems.append(f"{name}: uid {uid}")
    return problems


def child(address: str, base: str, control: str) -> None:
    """A feeder that ends before its cursor."""
    ray.init(address=address, logging_level="warning")
    tq.init()
    with Client(base, control) as client:
        Feeder(client, "here", queue=Ends()).feed()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        child(*sys.argv[1:])
    sys.exit(main())
