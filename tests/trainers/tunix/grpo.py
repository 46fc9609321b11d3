# SPDX-License-Identifier: Apache-2.0
"""Two steps of tunix's own GRPO learner, sampled through tokentap; the data of the learner is compared with the record.

The actor is tunix's toy transformer, while the demo engine samples from another model. The checks are about the data (ids, padding,
logprobs, entropies, policy versions), not about learning.
"""

from __future__ import annotations

import functools
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from demo import TOKENIZER, demo
from flax import nnx
from outcome import outcome, same_bits
from record import equals_record
from safetensors.numpy import load_file
from toy import VOCABULARY, cluster, flat, reward, saver
from transformers import AutoTokenizer
from tunix.generate import sampler, utils
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl import rl_cluster
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rollout.base_rollout import RolloutConfig

from tokentap import Client
from tokentap.tunix import Sample

GROUP = 4
STEPS = 2
TEMPERATURE = 0.8
PROMPT, ANSWER = 16, 24
# The end token, so that the lengths of answers differ; the demo's own end token is also its padding.
FULL_STOP = 13
PROMPTS = [["The lamp", "The keeper of the lighthouse wrote"], ["Every morning the", "A"]]


class RecordingLearner(GRPOLearner):
    """The learner, which stores each batch with its samples and their full distributions."""

    def __init__(self, *args: Any, client: Client, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.client = client
        self.seen: list[tuple[Any, list[Sample], list[Any]]] = []

    def _generate_and_compute_advantage(self, training_input: Any, mode: Any = rl_cluster.Mode.TRAIN) -> Any:
        example = super()._generate_and_compute_advantage(training_input, mode)
        samples = self.rl_cluster.rollout.recent(len(training_input["prompts"]))
        # requested now, while the engine still has the weights of the samples
        truth = [full_rows(self.client, samples[at]) for at in range(0, len(samples), GROUP)]
        self.seen.append((example, samples, truth))
        return example


def full_rows(client: Client, sample: Sample) -> Any:
    """[T, V] the engine's own logprobs of the whole vocabulary at each token of a sample, in float64."""
    rows = []
    for at in range(len(sample.tokens)):
        answer = client.generate(
            input_ids=[*sample.prompt.tolist(), *sample.tokens[:at].tolist()],
            sampling_params={"max_new_tokens": 1, "temperature": TEMPERATURE},
            return_entropy=False,
            return_logprob=True,
            token_ids_logprob=list(range(VOCABULARY)),
        )
        (row,) = answer.meta_info["output_token_ids_logprobs"]
        rows.append([logprob for logprob, _, _ in row])
    return np.array(rows, dtype=np.float64)


def entropy_metric(rollout: Any) -> Any:
    """The mean entropy of a batch, as a metric of tunix."""

    def metric(completions: list[str], **_: Any) -> dict[str, Any]:
        samples = rollout().recent(completions)
        assert samples == rollout().recent(len(completions)), "recent(n) returns the last samples of this thread"
        return {"entropy/mean": (np.mean(np.concatenate([sample.entropy for sample in samples])), np.mean)}

    return metric


def config() -> RolloutConfig:
    """The sampling settings."""
    return RolloutConfig(
        max_tokens_to_generate=ANSWER,
        max_prompt_length=PROMPT,
        temperature=TEMPERATURE,
        seed=jax.random.PRNGKey(7),
        eos_tokens=[FULL_STOP],
    )


def rows(learner: RecordingLearner) -> Iterator[tuple[int, int, Any, Sample]]:
    """(step, row, example, sample) of all samples."""
    for step, (example, samples, _) in enumerate(learner.seen):
        for row, sample in enumerate(samples):
            yield step, row, example, sample


def check_variety(learner: RecordingLearner) -> str:
    """tunix uses one seed for all, and repeats prompts."""
    assert len(learner.seen) == STEPS, f"{STEPS} batches were sampled, not {len(learner.seen)}"
    samples = [sample for _, _, _, sample in rows(learner)]
    texts = {sample.text for sample in samples}
    assert len(texts) > len(samples) // 2, f"only {len(texts)} different texts"
    lengths = [len(sample.tokens) for sample in samples]
    assert min(lengths) < ANSWER, "some answers end early"
    assert max(lengths) == ANSWER, "some answers reach the limit"
    return f"{len(texts)} texts in {len(samples)} samples, {min(lengths)} to {max(lengths)} tokens"


def check_padding(learner: RecordingLearner, tokenizer: TokenizerAdapter) -> str:
    """The training data equal the result of tunix's own sampler and padding for the same prompt and tokens."""
    prompts = [prompt for batch in PROMPTS for prompt in batch for _ in range(GROUP)]
    vanilla = functools.partial(sampler.Sampler.tokenize, type("Bare", (), {"tokenizer": tokenizer})())
    for (_, row, example, sample), prompt in zip(rows(learner), prompts, strict=True):
        ids = vanilla(prompt)
        assert np.array_equal(sample.prompt, ids), "the prompt has the ids of tunix's sampler"
        padded = utils.pad_to_length(ids, PROMPT, tokenizer.pad_id(), left=True)
        assert np.array_equal(example.prompt_ids[row], padded), "prompts are padded on the left as tunix pads"
        padded = utils.pad_to_length(sample.tokens, ANSWER, tokenizer.pad_id())
        assert np.array_equal(example.completion_ids[row], padded), "tokens reach the learner unchanged"
        old = utils.pad_to_length(sample.logprobs, ANSWER)
        assert same_bits(example.old_per_token_logps[row], old), "old logprobs are those of the sampled tokens"
    return f"{len(prompts)} rows"


def check_record(learner: RecordingLearner, client: Client) -> str:
    """Tokens, logprobs, entropies and policies are those that tokentap recorded."""
    tokens = [
        equals_record(client, sample, (str(step), str(step) if step else "default"))
        for step, _, _, sample in rows(learner)
    ]
    return f"{STEPS} steps, {len(tokens)} samples, {sum(tokens)} tokens"


def check_truth(learner: RecordingLearner) -> str:
    """Compares logprobs and entropies with the full distributions."""
    count, worst = 0, 0.0
    for _, samples, truth in learner.seen:
        for sample, full in zip(samples[::GROUP], truth, strict=True):
            assert same_bits(sample.logprobs, full[np.arange(len(full)), sample.tokens]), "logprobs are the engine's"
            exact = -np.sum(np.exp(full) * full, axis=1)
            worst = max(worst, float(np.max(np.abs(sample.entropy - exact))))
            count += len(full)
    assert worst < 1e-5, f"with all logprobs requested, entropies are exact: {worst} nats off"
    return f"{count} tokens, logprobs equal, entropies within {worst:.1e} nats"


def check_policy(client: Client, folder: Path, model: Any) -> str:
    """The engine and tokentap have the last version; the last saved weights are those of the actor."""
    assert client.policy()["version"] == str(STEPS), f"tokentap has the policy {client.policy()}"
    saved = load_file(folder / str(STEPS) / "model.safetensors")
    first = load_file(folder / "1" / "model.safetensors")
    actor = flat(nnx.state(model, nnx.Param))
    assert saved.keys() == actor.keys()
    assert all(np.array_equal(saved[name], actor[name]) for name in actor), "the last weights are the actor's"
    assert any(not np.array_equal(saved[name], first[name]) for name in saved), "the second step changed the weights"
    return f"version {STEPS}, epoch {client.policy()['epoch']}"


def main() -> int:
    """Trains and runs all checks."""
    with demo("--top-logprobs", str(VOCABULARY)) as client, tempfile.TemporaryDirectory() as name:
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
        # each batch is trained twice
        rl = cluster(client, tokenizer, config(), STEPS * 2, saver=saver(Path(name)), entropy=True, session="grpo")
        algorithm = GRPOConfig(num_generations=GROUP, num_iterations=2, beta=0.04)
        learner = RecordingLearner(rl, algorithm, reward, metric_fns=[entropy_metric(lambda: rl.rollout)], client=client)
        learner.train([{"prompts": np.array(batch)} for batch in PROMPTS])
        status = outcome(
            ("samples of one prompt differ", lambda: check_variety(learner)),
            ("padding and old logprobs are tunix's", lambda: check_padding(learner, TokenizerAdapter(tokenizer))),
            ("samples equal the record", lambda: check_record(learner, client)),
            ("the full distribution agrees", lambda: check_truth(learner)),
            ("weights and policy version change together", lambda: check_policy(client, Path(name), rl.actor_trainer.model)),
        )
        rl.rollout.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
