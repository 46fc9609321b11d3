# SPDX-License-Identifier: Apache-2.0
"""The rollout before and after new weights, with the demo engine or a real SGLang."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import numpy as np
from demo import TOKENIZER, demo
from outcome import outcome
from record import equals_record
from transformers import AutoTokenizer
from tunix.rl.rollout.base_rollout import RolloutConfig

from tokentap import Client
from tokentap.tunix import TokentapRollout, WeightsNotUpdated

PROMPTS = ["The lamp"] * 4 + ["The keeper of the lighthouse wrote to the captain of the ship"]
CONFIG = RolloutConfig(
    max_tokens_to_generate=16, max_prompt_length=16, temperature=0.8, top_k=-1, seed=jax.random.PRNGKey(3)
)


class Weights:
    """A rollout, and a saver that returns a fixed folder."""

    def __init__(self, client: Client, tokenizer: Any, folder: Path) -> None:
        self.client = client
        self.folder = Path("/nonexistent")
        self.other = folder
        self.rollout = TokentapRollout(None, tokenizer, client=client, saver=self.save, entropy=True)

    def save(self, params: Any, version: int) -> Path:
        return self.folder

    def sampled(self, policy: tuple[str, str]) -> str:
        """Compares a batch with the record."""
        samples = self.rollout.generate(PROMPTS, CONFIG).samples
        tokens = sum(equals_record(self.client, sample, policy) for sample in samples)
        mean = np.mean(np.concatenate([sample.entropy for sample in samples if sample.entropy is not None]))
        return f"{tokens} tokens, mean entropy {mean:.3f} nats"

    def before(self) -> str:
        """With the initial weights."""
        return self.sampled(("0", "default"))

    def refused(self) -> str:
        """Weights that cannot be loaded change nothing."""
        epoch = self.client.policy()["epoch"]
        message = ""
        try:
            self.rollout.update_params({})
        except WeightsNotUpdated as error:
            message = str(error)
        assert "the engine refused to load them" in message, f"the error has no reason: {message!r}"
        assert self.client.policy()["epoch"] == epoch, "the policy has not changed"
        return self.sampled(("0", "default"))

    def after(self) -> str:
        """With new weights."""
        self.folder = self.other
        self.rollout.update_params({})
        return self.sampled(("1", "1"))


@contextmanager
def engine(arguments: argparse.Namespace) -> Iterator[tuple[Client, Path, Path]]:
    """A client, the folder of the tokenizer, and a folder with other weights."""
    if arguments.base is None:
        with demo() as client:
            yield client, TOKENIZER, Path("/other-weights")
    else:
        # tests/real makes model-0 and model-1, which differ only in their weights
        with Client(arguments.base, arguments.control, retries=5) as client:
            yield client, arguments.model, arguments.model.with_name("model-1")


def main() -> int:
    """Runs all checks."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--base", help="data port")
    arguments.add_argument("--control", help="control port")
    arguments.add_argument("--model", type=Path, help="folder of the model that is served")
    with engine(arguments.parse_args()) as (client, tokenizer, folder):
        weights = Weights(client, AutoTokenizer.from_pretrained(tokenizer), folder)
        status = outcome(
            ("samples equal the record", weights.before),
            ("refused weights change nothing", weights.refused),
            ("new weights have the trainer's number", weights.after),
        )
        weights.rollout.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
