# SPDX-License-Identifier: Apache-2.0
"""The rollout compared with tunix's own sampler, and its errors for unsupported requests."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from demo import TOKENIZER, demo
from outcome import outcome
from toy import cluster, model, saver
from transformers import AutoTokenizer
from tunix.generate.sampler import CacheConfig, Sampler
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl.rollout.base_rollout import RolloutConfig

from tokentap import Client
from tokentap.tunix import EntropyMissing, TokentapRollout, WeightsNotUpdated

PROMPTS = ["The lamp", "A", "The keeper of the lighthouse wrote to the captain of the ship"]


class WithBos:
    """A tokenizer with a bos token, which the demo's does not have; one id per letter."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def bos_id(self) -> int:
        return ord("B")

    def eos_id(self) -> int:
        return 1

    def pad_id(self) -> int:
        return 2


def raised(kind: type[Exception], words: str, call: Callable[[], object]) -> None:
    """Checks that a call fails with the reason."""
    message = None
    try:
        call()
    except kind as error:
        message = str(error)
    assert message is not None, f"expected {kind.__name__}"
    assert words in message, f"{words!r} is not in {message}"


def padding(client: Client) -> str:
    """Prompts and their padding are those of tunix's sampler, for every max_prompt_length."""
    compared = 0
    for tokenizer in (AutoTokenizer.from_pretrained(TOKENIZER), WithBos()):
        rollout = TokentapRollout(None, tokenizer, client=client)
        vanilla = Sampler(model(), TokenizerAdapter(tokenizer), CacheConfig(256, 4, 4, 16))
        for length in (2, 8, 64):
            config = RolloutConfig(max_tokens_to_generate=2, max_prompt_length=length)
            for prompts in (PROMPTS, ["B", "BB"], PROMPTS[0]):
                mine = rollout.generate(prompts, config).left_padded_prompt_tokens
                theirs = vanilla(prompts, max_generation_steps=2, max_prompt_length=length).padded_prompt_tokens
                assert mine.dtype == np.int32
                assert np.array_equal(mine, theirs), f"{prompts} at {length}: {mine} and not {theirs}"
                compared += 1
        assert (rollout.pad_id(), rollout.eos_id()) == (vanilla.tokenizer.pad_id(), vanilla.tokenizer.eos_id())
        rollout.close()
    return f"{compared} batches"


def seeds(client: Client) -> str:
    """The same seed gives the same run, in each form that tunix accepts; another seed gives another run."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)

    def run(seed: Any) -> list[list[int]]:
        rollout = TokentapRollout(None, tokenizer, client=client)
        config = RolloutConfig(max_tokens_to_generate=12, seed=seed, temperature=1.0)
        tokens = [tokens.tolist() for _ in range(2) for tokens in rollout.generate(["The"] * 4, config).tokens]
        rollout.close()
        return tokens

    first = run(jax.random.PRNGKey(7))
    assert first == run(jax.random.key(7)) == run(np.array([0, 7]))
    assert first != run(jax.random.PRNGKey(8))
    assert len({tuple(tokens) for tokens in first}) > 4, "samples of one prompt differ, and so do repeated calls"
    return f"{len(first)} samples"


def templates(client: Client) -> str:
    """RLCluster renders messages, and returns the results of micro batches in order."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    rl = cluster(client, tokenizer, RolloutConfig(max_tokens_to_generate=4, max_prompt_length=64), 1)
    chats = [[{"role": "user", "content": text}] for text in PROMPTS]
    output = rl.generate(chats, apply_chat_template=True, micro_batch_size=2, max_generation_steps=3)
    samples = rl.rollout.recent(3)
    for chat, row, tokens, sample in zip(chats, output.left_padded_prompt_tokens, output.tokens, samples, strict=True):
        # RLCluster switches thinking off, and the demo's template respects that
        rendered = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True, enable_thinking=False)
        ids = tokenizer.encode(rendered)
        assert row[-len(ids) :].tolist() == ids, "the prompt is the rendered chat"
        assert tokens.tolist() == sample.tokens.tolist(), "recent samples are in the order of the output"
        assert len(tokens) == 3, "RLCluster's own limit applies"
    old = rl.get_old_per_token_logps(
        jnp.asarray(output.left_padded_prompt_tokens), jnp.asarray(np.stack(output.tokens)), micro_batch_size=1
    )
    assert np.array_equal(old, np.stack(output.logprobs)), "old logprobs are found row by row"
    unknown = jnp.zeros((1, 3), jnp.int32)
    raised(LookupError, "not sampled", lambda: rl.rollout.get_per_token_logps(unknown, unknown))
    raised(ValueError, "temperature", lambda: rl.rollout.generate(["The"], temperature=0.5))
    raised(WeightsNotUpdated, "no `saver`", rl.sync_weights)
    rl.rollout.close()
    return f"{len(samples)} chats"


def threads(client: Client) -> str:
    """Two threads that sample concurrently, as with a learner's prefetch, get their own samples."""
    rollout = TokentapRollout(None, AutoTokenizer.from_pretrained(TOKENIZER), client=client)
    both = Barrier(2)

    def sampled(prompt: str) -> list[str]:
        texts = rollout.generate([prompt] * 3, RolloutConfig(max_tokens_to_generate=6, temperature=1.0)).text
        both.wait(60)
        assert [sample.text for sample in rollout.recent(3)] == texts, "recent(n) returns the last samples of this thread"
        assert [sample.text for sample in rollout.recent(texts)] == texts, "recent(texts) returns the samples with these texts"
        return texts

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(sampled, ("The lamp", "The sea"))
    assert [sample.text for sample in rollout.recent(second)] == second, "another thread finds them by their texts"
    raised(ValueError, "0 kept of this thread", lambda: rollout.recent(1))
    raised(LookupError, "with these texts", lambda: rollout.recent(["never sampled"]))
    rollout.close()
    return f"{len(first)} and {len(second)} samples"


def names(client: Client) -> str:
    """An invalid prefix of session names is rejected before sampling."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    for name in ("my run", "x" * 120):
        raised(
            ValueError,
            "session's name",
            lambda name=name: TokentapRollout(None, tokenizer, client=client, session=name),
        )
    rollout = TokentapRollout(None, tokenizer, client=client)
    raised(ValueError, "session's name", lambda: rollout.episode("a b").__enter__())
    raised(ValueError, "no prompts", lambda: rollout.generate([], RolloutConfig(max_tokens_to_generate=1)))
    rollout.close()
    return "refused"


def weights(client: Client, folder: Path) -> str:
    """sync_weights updates both engine and policy, or neither."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    place = [Path("/nonexistent")]
    save = saver(folder)

    def doubled(params: Any, version: int) -> Path:
        # this computes on the device, which RLCluster disallows in its scope
        save(jax.tree.map(lambda leaf: leaf * 2.0, params), version)
        return place[0]

    rl = cluster(client, tokenizer, RolloutConfig(max_tokens_to_generate=4), 1, saver=doubled, version=40)
    assert client.policy()["version"] == "40"
    raised(WeightsNotUpdated, "no weights at '/nonexistent'", rl.sync_weights)
    assert client.policy()["version"] == "40", "a rejected update does not change the version"
    place[0] = folder / "41"
    rl.sync_weights()
    assert rl.rollout.version == 41
    assert client.policy()["version"] == "41"
    (sample,) = rl.rollout.generate(["The lamp"]).samples
    assert sample.weight_version == "41"
    (path,) = client.trajectories(sample.session)["trajectories"]
    assert [span["version"] for span in path["policy"]] == ["41"]
    rl.rollout.close()
    return "version 40 to 41"


def entropies(client: Client) -> str:
    """Missing entropies are None with the reason; if they are required, that is an error."""
    tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
    config = RolloutConfig(max_tokens_to_generate=4)
    rollout = TokentapRollout(None, tokenizer, client=client)
    assert rollout.generate(["The"], config).entropies == [None]
    rollout.close()
    rollout = TokentapRollout(None, tokenizer, client=client, entropy=True)
    raised(EntropyMissing, "--entropy", lambda: rollout.generate(["The"], config))
    rollout.close()
    return "None, or an error"


def main() -> int:
    """Runs all checks."""
    with demo() as client, tempfile.TemporaryDirectory() as name:
        status = outcome(
            ("padding is that of tunix's sampler", lambda: padding(client)),
            ("equal seeds give equal samples", lambda: seeds(client)),
            ("chats, micro batches, old logprobs", lambda: templates(client)),
            ("each thread has separate samples", lambda: threads(client)),
            ("invalid session names are rejected", lambda: names(client)),
            ("sync_weights updates engine and policy", lambda: weights(client, Path(name))),
        )
    with demo("--entropy", "off") as client:
        return outcome(("missing entropies", lambda: entropies(client))) or status


if __name__ == "__main__":
    sys.exit(main())
