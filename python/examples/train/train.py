# SPDX-License-Identifier: Apache-2.0
"""GRPO or EGPO in plain torch: SGLang samples through tokentap, and this process trains. Copy it and change it.

train.py --model FOLDER --work FOLDER [--steps 20] [--estimator egpo]

Each step samples a group for each prompt, sets the rewards, reads the batch with its advantages, makes one optimizer
step, and loads the new weights into SGLang. WORK gets `metrics.jsonl` and a checkpoint for each step; a second start
continues after the last checkpoint. SGLang must be able to read WORK.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import torch
from sums import Sum, sums, verify
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, logging

from tokentap import Client, SampleAdvantages


def options() -> argparse.ArgumentParser:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder that SGLang serves")
    parser.add_argument("--work", type=Path, required=True, help="metrics and checkpoints")
    parser.add_argument("--url", default="http://127.0.0.1:30001", help="tokentap's data port")
    parser.add_argument("--control-url", default="http://127.0.0.1:30002", help="tokentap's control port")
    parser.add_argument("--steps", type=int, default=20, help="the step after which training ends")
    parser.add_argument("--estimator", choices=("grpo", "egpo"), default="grpo")
    parser.add_argument("--entropy-over", choices=("response", "thinking"), default="response", help="for EGPO's H")
    parser.add_argument("--prompts", type=int, default=8, help="groups in a step")
    parser.add_argument("--samples", type=int, default=8, help="samples in a group")
    parser.add_argument("--tokens", type=int, default=8, help="the most tokens of a sample")
    parser.add_argument("--temperature", type=float, default=1.0)
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--clip", type=float, default=0.2, help="the ratio stays within 1 - CLIP and 1 + CLIP")
    parser.add_argument("--rows", type=int, default=8, help="rows in a forward pass")
    parser.add_argument("--seed", default="0", help="of the questions")
    return parser


class Run:
    """The state of a training: the policy, its optimizer, and the files in the work folder."""

    def __init__(self, made: argparse.Namespace) -> None:
        self.options, self.work = made, made.work.resolve()
        self.work.mkdir(parents=True, exist_ok=True)
        self.client = Client(made.url, made.control_url)
        steps = (int(folder.name.removeprefix("step-")) for folder in self.work.glob("step-*[0-9]"))
        self.step = max(steps, default=0)
        folder = self.checkpoint(self.step) if self.step else made.model.resolve()
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=made.learning_rate, weight_decay=0.0)
        if self.step:
            self.optimizer.load_state_dict(torch.load(folder / "optimizer.pt", weights_only=True))
        # a step that ended before its checkpoint is repeated
        self.metrics = self.work / "metrics.jsonl"
        lines = self.metrics.read_text().splitlines() if self.metrics.exists() else []
        self.metrics.write_text("".join(f"{line}\n" for line in lines if json.loads(line)["step"] < self.step))
        self.load(folder)
        # names that earlier starts did not use
        self.name = f"{made.estimator}-{uuid4().hex[:6]}"

    def checkpoint(self, step: int) -> Path:
        """The folder of the policy after `step` steps."""
        return self.work / f"step-{step}"

    def load(self, folder: Path) -> None:
        """Loads the weights in a folder into SGLang."""
        reply = self.client.update_weights_from_disk(folder, weight_version=f"step-{self.step}")
        if not reply["success"]:
            raise RuntimeError(f"SGLang did not load {folder}: {reply['message']}")

    def save(self) -> None:
        """Writes the checkpoint of this step, and removes older ones but the last."""
        folder = self.checkpoint(self.step)
        new = folder.with_name(f"{folder.name}.new")
        self.model.save_pretrained(new)
        self.tokenizer.save_pretrained(new)
        torch.save(self.optimizer.state_dict(), new / "optimizer.pt")
        # the name appears when all files are complete
        new.rename(folder)
        shutil.rmtree(self.checkpoint(self.step - 2), ignore_errors=True)

    def tasks(self) -> list[Sum]:
        """The questions of this step."""
        return sums(self.options.prompts, f"{self.options.seed}-{self.step}")

    def sample(self, tasks: list[Sum]) -> tuple[list[str], list[float]]:
        """Samples a group for each task and sets the rewards; each sample is a session."""

        def roll(name: str, task: Sum) -> float:
            made = self.client.generate(
                input_ids=self.tokenizer(task.prompt).input_ids,
                sampling_params={
                    "temperature": self.options.temperature,
                    "max_new_tokens": self.options.tokens,
                    "stop": ["\n"],
                },
                session=name,
                return_logprob=True,
                done=True,
            )
            reward = verify(made.text, task.answer)
            self.client.reward(name, reward)
            return reward

        each = [task for task in tasks for _ in range(self.options.samples)]
        names = [f"{self.name}-{self.step}-{at}" for at in range(len(each))]
        with ThreadPoolExecutor(len(each)) as pool:
            return names, list(pool.map(roll, names, each))

    def batch(self, sessions: list[str]) -> dict[str, Tensor]:
        """The rows of the sessions; rows with the same prompt are a group of the advantages."""
        advantages: SampleAdvantages = {
            "estimator": self.options.estimator,
            "entropy_over": self.options.entropy_over,
        }
        pad = self.tokenizer.pad_token_id
        made = self.client.samples(sessions, "verl", pad_token_id=pad, advantages=advantages).torch()
        if made.refused:
            print(f"not trained: {made.refused}")
        return made.tensors

    def update(self, batch: dict[str, Tensor]) -> dict[str, float]:
        """One optimizer step on the clipped objective; the metrics compare trainer and tokentap token by token."""
        mask, sampled_logprobs = batch["response_mask"].bool(), batch["rollout_log_probs"]
        tokens, length = mask.sum(), mask.shape[1]
        gaps, entropies = torch.zeros_like(sampled_logprobs), torch.zeros_like(sampled_logprobs)
        for rows in torch.arange(len(mask)).split(self.options.rows):
            output = self.model(
                input_ids=batch["input_ids"][rows],
                attention_mask=batch["attention_mask"][rows],
                position_ids=batch["position_ids"][rows],
                logits_to_keep=length + 1,
            )
            logprobs = (output.logits[:, :-1] / self.options.temperature).log_softmax(-1)
            chosen = logprobs.gather(-1, batch["responses"][rows, :, None])[..., 0]
            gap = torch.where(mask[rows], chosen - sampled_logprobs[rows], 0.0)
            ratio, advantages = gap.exp(), batch["advantages"][rows]
            clipped = ratio.clamp(1 - self.options.clip, 1 + self.options.clip)
            objective = torch.minimum(ratio * advantages, clipped * advantages)
            (-objective[mask[rows]].sum() / tokens).backward()
            gaps[rows], entropies[rows] = gap.detach().abs(), -(logprobs.exp() * logprobs).sum(-1).detach()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        recorded = batch["rollout_entropy"]
        return {
            "tokens": int(tokens),
            # tokentap's estimate in nats a token, and the exact value from the trainer's own logits
            "entropy": recorded[mask].mean().item(),
            "entropy_exact": entropies[mask].mean().item(),
            "entropy_error": (recorded - entropies)[mask].abs().mean().item(),
            # |trainer's logprob - SGLang's|
            "logprob_gap": gaps[mask].max().item(),
            "gradient_norm": norm.item(),
        }

    def one_step(self) -> None:
        """Samples, trains, saves and loads."""
        began = time.monotonic()
        sessions, rewards = self.sample(self.tasks())
        batch = self.batch(sessions)
        sampled = time.monotonic()
        line = {
            "step": self.step,
            "reward": sum(rewards) / len(rewards),
            "right": rewards.count(1.0) / len(rewards),
            **self.update(batch),
            # of the weights that sampled, by SGLang
            "version": int(self.client.policy()["weight_version"].removeprefix("step-")),
            "seconds_sample": sampled - began,
            "seconds_train": time.monotonic() - sampled,
        }
        with self.metrics.open("a") as file:
            print(json.dumps(line), file=file)
        print("  ".join(f"{name} {value:.4g}" for name, value in line.items()), flush=True)
        self.step += 1
        self.save()
        self.load(self.checkpoint(self.step))


def main() -> None:
    """Trains until the step that was asked for."""
    made = options().parse_args()
    logging.disable_progress_bar()
    run = Run(made)
    while run.step < made.steps:
        run.one_step()


if __name__ == "__main__":
    main()
