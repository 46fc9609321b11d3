# SPDX-License-Identifier: Apache-2.0
"""An RLCluster on the CPU: tunix's toy transformer as actor, tokentap's rollout as engine."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx
from safetensors.numpy import save_file
from tunix.rl import rl_cluster
from tunix.rl.rollout.base_rollout import RolloutConfig
from tunix.tests import test_common

from tokentap import Client
from tokentap.tunix import TokentapRollout

# The id of the demo's tokenizer.
VOCABULARY = 1024


def cluster(client: Client, tokenizer: Any, rollout: RolloutConfig, steps: int, **engine: Any) -> rl_cluster.RLCluster:
    """Two prompts per batch; `steps` is the number of optimizer steps, `engine` is passed to the rollout."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]).reshape(1, 1), ("fsdp", "tp"))
    training = rl_cluster.RLTrainingConfig(
        actor_optimizer=optax.sgd(1e-2),
        eval_every_n_steps=100,
        max_steps=steps,
        mini_batch_size=2,
        train_micro_batch_size=2,
        rollout_micro_batch_size=1,
    )
    config = rl_cluster.ClusterConfig(
        role_to_mesh=dict.fromkeys(rl_cluster.Role, mesh),
        rollout_engine=functools.partial(TokentapRollout, client=client, **engine),
        training_config=training,
        rollout_config=rollout,
    )
    return rl_cluster.RLCluster(actor=model(), reference=model(), tokenizer=tokenizer, cluster_config=config)


def model() -> Any:
    """The actor; each call returns the same weights."""
    return test_common.ToyTransformer(test_common.ModelConfig(vocab_size=VOCABULARY), rngs=nnx.Rngs(0))


def flat(params: Any) -> dict[str, Any]:
    """Parameters by dotted path."""
    return {".".join(map(str, path)): np.asarray(leaf[...]) for path, leaf in params.flat_state()}


def saver(folder: Path) -> Callable[[Any, int], Path]:
    """Returns a saver that writes parameters as safetensors into a folder per version. After a failed update it overwrites the folder."""

    def save(params: Any, version: int) -> Path:
        made = folder / f"{version}.new"
        made.mkdir(exist_ok=True)
        save_file(flat(params), made / "model.safetensors")
        place = folder / str(version)
        shutil.rmtree(place, ignore_errors=True)
        return made.rename(place)

    return save


def reward(prompts: Any, completions: list[str], **_: Any) -> list[float]:
    """Rewards answers with many letters e."""
    return [float(text.count("e")) for text in completions]
