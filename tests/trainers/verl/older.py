# SPDX-License-Identifier: Apache-2.0
"""Batches of verl's older trainer: its manager and workers on ray, and a DataProto."""

from __future__ import annotations

import time
from typing import Any

import lab
from account import Account
from omegaconf import DictConfig
from rows import Truth, as_recorded, as_true, rows, shape
from tokentap import Client
from tokentap.verl import AgentLoopManager
from transformers import AutoTokenizer


class Older:
    """A manager with its own workers."""

    def __init__(self, name: str, config: DictConfig, client: Client, account: Account) -> None:
        self.name, self.client, self.account = name, client, account
        self.tokenizer = AutoTokenizer.from_pretrained(config.actor_rollout_ref.model.path)
        # no llm_client: verl's own servers are not used
        self.manager = AgentLoopManager.create(config=config, llm_client=None)

    def batch(self, loop: str, questions: list[str], n: int) -> Any:
        """The batch of the trainer, compared with tokentap's record and the order of the prompts."""
        began = time.monotonic()
        data = self.manager.generate_sequences(lab.prompts(questions, n, loop))
        took, name = time.monotonic() - began, f"{self.name}, {loop}"
        found = rows(data)
        trained = sum(sum(row.mask) for row in found)
        size = list(data.batch["rollout_entropy"].shape)
        self.account.check(f"{name}: shape and zeros", shape(data), f"{size}, {trained} trained tokens, {took:.1f} s")
        self.account.check(f"{name}: as recorded", [one for row in found for one in as_recorded(row, self.client)])
        self.account.check(f"{name}: order of the prompts", self._order(data, [q for q in questions for _ in range(n)]))
        sessions = {row.session for row in found}
        problems = [] if len(sessions) == len(found) else ["rows share a session"]
        self.account.check(f"{name}: one session per row, {n} samples per prompt", problems)
        return data

    def _order(self, data: Any, questions: list[str]) -> list[str]:
        problems = []
        for at, (row, question) in enumerate(zip(rows(data), questions, strict=True)):
            text = self.tokenizer.decode(row.prompt)
            if question not in text:
                problems.append(f"row {at} does not have the prompt {question!r}")
        return problems

    def check_truth(self, data: Any, truth: Truth, tolerance: float | None) -> None:
        """The entropies are near those of the distribution before each token."""
        problems, note = as_true(rows(data), truth, tolerance)
        self.account.check(f"{self.name}: near the truth", problems, note)

    def check_tools(self, data: Any) -> None:
        """Observations are part of the response, and neither mask nor entropy counts them."""
        observed = [row.mask[: len(row.mask) - row.mask[::-1].index(1)].count(0) for row in rows(data)]
        turns = data.non_tensor_batch["__num_turns__"].tolist()
        problems = [] if any(observed) else ["no tool was called, so nothing was checked"]
        note = f"turns {turns}, observed tokens before the last sampled one {observed}"
        self.account.check(f"{self.name}: observations", problems, note)

    def check_versions(self, data: Any, version: int) -> None:
        """The policy on the control port is verl's global step."""
        seen = {data.non_tensor_batch[f"{end}_global_steps"][at] for end in ("min", "max") for at in range(len(data))}
        self.account.check(f"{self.name}: global steps", [] if seen == {version} else [f"{seen}, not {version}"])

    def check_concurrency(self, data: Any) -> None:
        """Rollouts are concurrent: tokentap served several of them at once."""
        spans = []
        for row in rows(data):
            turn = self.client.trajectories(row.session)["trajectories"][0]["turns"][0]
            spans.append((turn["started_ms"], turn["started_ms"] + turn["elapsed_ms"]))
        most = max(sum(begin <= at < end for begin, end in spans) for at, _ in spans)
        problems = [] if most > 1 else ["the rollouts ran in sequence"]
        self.account.check(f"{self.name}: concurrent rollouts", problems, f"at most {most} of {len(spans)} at once")
