# SPDX-License-Identifier: Apache-2.0
"""GRPO with tunix, sampled by SGLang behind tokentap; the mean entropy of the policy is one of its metrics.

Run it beside `tokentap demo` in the root of the repository. The actor is a toy model that is unrelated to the demo's.
For your own model, use the same weights in `actor` and in the engine, the model's tokenizer and meshes, and a saver
that writes a checkpoint for `/update_weights_from_disk` to a disk that the engine can read.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import tempfile
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from safetensors.numpy import save_file
from transformers import AutoTokenizer
from tunix.rl.grpo.grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.rl_cluster import ClusterConfig, RLCluster, RLTrainingConfig, Role
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.tests import test_common

from tokentap import Client
from tokentap.tunix import TokentapRollout


def save(folder: Path, params: Any, version: int) -> Path:
    """Writes the actor's parameters; a real engine needs its own parameter names and a config.json."""
    made = folder / f"{version}.new"
    made.mkdir(exist_ok=True)
    leaves = {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in params.flat_state()}
    save_file(leaves, made / "model.safetensors")
    # the rename is atomic; after a failed update the same version is written again
    place = folder / str(version)
    shutil.rmtree(place, ignore_errors=True)
    return made.rename(place)


def reward(prompts: Any, completions: list[str], **_: Any) -> list[float]:
    """Rewards the letter e."""
    return [float(text.count("e")) for text in completions]


def main() -> None:
    """Trains two steps."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--url", default="http://127.0.0.1:30001", help="data port")
    arguments.add_argument("--control-url", default="http://127.0.0.1:30002", help="control port")
    arguments.add_argument("--tokenizer", default="src/demo/assets", help="of the engine's model")
    options = arguments.parse_args()

    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    actor = test_common.ToyTransformer(test_common.ModelConfig(vocab_size=1024), rngs=nnx.Rngs(0))
    with Client(options.url, options.control_url, retries=60) as client, tempfile.TemporaryDirectory() as folder:
        cluster = RLCluster(
            actor=actor,
            tokenizer=AutoTokenizer.from_pretrained(options.tokenizer),
            cluster_config=ClusterConfig(
                role_to_mesh=dict.fromkeys(Role, mesh),
                rollout_engine=functools.partial(
                    TokentapRollout, client=client, saver=functools.partial(save, Path(folder)), entropy=True
                ),
                rollout_config=RolloutConfig(max_tokens_to_generate=16, max_prompt_length=16, temperature=0.8),
                training_config=RLTrainingConfig(actor_optimizer=optax.sgd(1e-2), eval_every_n_steps=100, max_steps=2),
            ),
        )

        def entropies(completions: list[str], **_: Any) -> dict[str, Any]:
            samples = cluster.rollout.recent(completions)
            mean = np.mean(np.concatenate([sample.entropy for sample in samples]))
            print(f"weights {cluster.rollout.version}: {len(samples)} samples, mean entropy {mean:.3f} nats")
            return {"entropy/mean": (mean, np.mean)}

        learner = GRPOLearner(cluster, GRPOConfig(num_generations=4, beta=0.0), reward, metric_fns=[entropies])
        learner.train([{"prompts": np.array(["The lamp", "Every morning the"])}] * 2)
        cluster.rollout.close()
        print(f"tokentap: {client.policy()}")


if __name__ == "__main__":
    main()
