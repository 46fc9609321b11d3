# SPDX-License-Identifier: Apache-2.0
"""tunix's GRPO learner trains the weights that a real SGLang samples with, through tokentap.

grpo.py --model FOLDER --work FOLDER [--steps 12]

The task is that of python/examples/train. WORK gets `metrics.jsonl`, with the columns of train.py, and the weights of
the last two versions. Before the first step the logprobs of a text are compared with SGLang's.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import llama
import numpy as np
import optax
from flax import nnx
from sums import sums, verify
from transformers import AutoTokenizer
from tunix.rl import common
from tunix.rl.algo_core import compute_entropy_from_logits
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, Mode, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig

from tokentap import Client
from tokentap.tunix import TokentapRollout

PROMPT, ANSWER, TEMPERATURE = 32, 8, 1.0
# float32 of two implementations, in nats
MOST_GAP = 1e-3
TEXT = (
    "Anna has 3 apples and buys 4 more.\n3 + 4 = 7\nThe keeper of the lighthouse wrote to the captain of the ship that"
    " the lamp would burn all night, because the storm was near and the rocks are hard to see."
)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder that SGLang serves")
    parser.add_argument("--work", type=Path, required=True, help="metrics and weights")
    parser.add_argument("--url", default="http://127.0.0.1:30001", help="tokentap's data port")
    parser.add_argument("--control-url", default="http://127.0.0.1:30002", help="tokentap's control port")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--prompts", type=int, default=8, help="groups in a step")
    parser.add_argument("--samples", type=int, default=8, help="samples in a group")
    parser.add_argument("--learning-rate", type=float, default=1e-5)
    parser.add_argument("--seed", default="0", help="of the questions")
    return parser.parse_args()


class Actor:
    """The actor's own logprobs and entropies, in float32."""

    def __init__(self, model: nnx.Module, tokenizer: Any) -> None:
        self.model, self.pad, self.end = model, tokenizer.pad_token_id, tokenizer.eos_token_id

    def score(self, prompts: Any, answers: Any) -> tuple[Any, Any]:
        """[B, T] logprobs of the answers, and the exact entropies at the same tokens."""
        logprobs, logits = common.compute_per_token_logps(
            *nnx.split(self.model),
            jnp.asarray(prompts),
            jnp.asarray(answers),
            pad_id=self.pad,
            eos_id=self.end,
            return_logits=True,
            temperature=TEMPERATURE,
        )
        return np.asarray(logprobs), np.asarray(compute_entropy_from_logits(logits))


class MeasuredLearner(GRPOLearner):
    """The learner, which compares each batch with its own model before it trains, and writes a line of metrics."""

    def __init__(self, cluster: RLCluster, *args: Any, client: Client, actor: Actor, file: Path, **kwargs: Any) -> None:
        super().__init__(cluster, *args, **kwargs)
        self.client, self.actor, self.file = client, actor, file

    def _generate_and_compute_advantage(self, training_input: Any, mode: Mode = Mode.TRAIN) -> Any:
        began = time.monotonic()
        example = super()._generate_and_compute_advantage(training_input, mode)
        sampled = time.monotonic()
        samples = self.rl_cluster.rollout.recent(len(example.completion_ids))
        answers = zip((sample.text for sample in samples), training_input["answer"], strict=True)
        rewards = [verify(text, int(answer)) for text, answer in answers]
        line = {
            "step": self.rl_cluster.rollout.version,
            "reward": np.mean(rewards),
            "right": rewards.count(1.0) / len(rewards),
            **self.measure(example, samples),
            "version": int(self.client.policy()["weight_version"]),
            "seconds_sample": sampled - began,
            "seconds_measure": time.monotonic() - sampled,
        }
        with self.file.open("a") as file:
            print(json.dumps(line, default=float), file=file)
        print("  ".join(f"{name} {value:.4g}" for name, value in line.items()), flush=True)
        return example

    def measure(self, example: Any, samples: list[Any]) -> dict[str, Any]:
        """Compares tokentap's logprobs and entropies with those of the actor, token by token."""
        gaps, estimates, exacts = [], [], []
        group = self.algo_config.num_generations
        for begin in range(0, len(samples), group):
            rows = slice(begin, begin + group)
            logprobs, entropies = self.actor.score(example.prompt_ids[rows], example.completion_ids[rows])
            for sample, own, exact in zip(samples[rows], logprobs, entropies, strict=True):
                count = len(sample.tokens)
                gaps.append(np.abs(own[:count] - sample.logprobs))
                estimates.append(sample.entropy)
                exacts.append(exact[:count])
        estimate, exact = np.concatenate(estimates), np.concatenate(exacts)
        return {
            "tokens": len(exact),
            "entropy": estimate.mean(),
            "entropy_exact": exact.mean(),
            "entropy_error": np.abs(estimate - exact).mean(),
            "logprob_gap": np.concatenate(gaps).max(),
        }


def compare(client: Client, actor: Actor, tokenizer: Any) -> float:
    """The largest difference between SGLang's and the actor's logprobs of a text, in nats."""
    ids = tokenizer.encode(TEXT)
    reply = client.generate(
        input_ids=ids,
        sampling_params={"max_new_tokens": 1, "temperature": TEMPERATURE},
        return_logprob=True,
        logprob_start_len=0,
    )
    engine = np.array([logprob for logprob, *_ in reply.meta_info["input_token_logprobs"][1:]])
    own, _ = actor.score([ids[:1]], [ids[1:]])
    return float(np.abs(own[0] - engine).max())


def check(name: str, passed: bool, value: object) -> None:
    """Prints a check, and ends the program if it failed."""
    print(f"{'ok' if passed else 'FAIL'} {name}: {value}", flush=True)
    if not passed:
        raise SystemExit(1)


def main() -> None:
    """Compares, then trains."""
    made = options()
    made.work.mkdir(parents=True, exist_ok=True)
    metrics = made.work / "metrics.jsonl"
    metrics.unlink(missing_ok=True)
    source, work = made.model.resolve(), made.work.resolve()
    tokenizer = AutoTokenizer.from_pretrained(source)
    # tunix derives its masks from the pad token, which must not be a token that is sampled
    tokenizer.pad_token = "<|endoftext|>"
    # tunix puts this token in front of each prompt; in SmolLM2 it begins a message
    tokenizer.bos_token = None
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    model = llama.load(source, mesh)
    different = llama.differ(source, nnx.state(model, nnx.Param))
    check("weights of JAX with the names of Hugging Face equal the folder's", not different, different[:3] or "all")

    with Client(made.url, made.control_url) as client:
        loaded = client.update_weights_from_disk(source, weight_version="0")
        if not loaded["success"]:
            raise RuntimeError(f"SGLang did not load {source}: {loaded['message']}")
        actor = Actor(model, tokenizer)
        gap = compare(client, actor, tokenizer)
        check("logprobs of a text, JAX and SGLang", gap < MOST_GAP, f"{gap:.1e} nat apart")

        def reward(prompts: Any, completions: list[str], answer: Any, **_: Any) -> list[float]:
            rewards = [verify(text, int(number)) for text, number in zip(completions, answer, strict=True)]
            for sample, value in zip(cluster.rollout.recent(completions), rewards, strict=True):
                client.reward(sample.session, value)
            return rewards

        cluster = RLCluster(
            actor=model,
            tokenizer=tokenizer,
            cluster_config=ClusterConfig(
                role_to_mesh=dict.fromkeys(Role, mesh),
                rollout_engine=functools.partial(
                    TokentapRollout,
                    client=client,
                    saver=llama.saver(source, work),
                    entropy=True,
                    sampling_params={"stop": ["\n"]},
                ),
                rollout_config=RolloutConfig(
                    max_tokens_to_generate=ANSWER, max_prompt_length=PROMPT, temperature=TEMPERATURE, top_k=-1
                ),
                training_config=RLTrainingConfig(
                    actor_optimizer=optax.chain(
                        optax.clip_by_global_norm(1.0), optax.adamw(made.learning_rate, weight_decay=0.0)
                    ),
                    eval_every_n_steps=made.steps + 1,
                    max_steps=made.steps,
                    mini_batch_size=made.prompts,
                    # a group at a time, after all are sampled
                    train_micro_batch_size=1,
                    rollout_micro_batch_size=made.prompts,
                    compute_logps_micro_batch_size=made.prompts,
                ),
            ),
        )
        algorithm = GRPOConfig(num_generations=made.samples, beta=0.0)
        learner = MeasuredLearner(cluster, algorithm, reward, client=client, actor=actor, file=metrics)
        steps = (sums(made.prompts, f"{made.seed}-{step}") for step in range(made.steps))
        learner.train(
            {
                "prompts": np.array([task.prompt for task in step]),
                "answer": np.array([task.answer for task in step]),
            }
            for step in steps
        )
        cluster.rollout.close()


if __name__ == "__main__":
    main()
