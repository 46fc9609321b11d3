# SPDX-License-Identifier: Apache-2.0
"""tunix's `BaseRollout` over HTTP: SGLang samples, tokentap measures and records."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from threading import Lock
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from tunix.generate.tokenizer_adapter import TokenizerAdapter
from tunix.rl.rollout.base_rollout import BaseRollout, RolloutConfig, RolloutOutput

from .._client import Client
from ._engine import logprob_fields
from ._names import beginning, episode_name
from ._padding import left_padded
from ._recent import Recent
from ._sample import Floats, Ids, Sample
from ._sampling import extra, sampling_params, seed_of
from ._weights import NO_SAVER, Saver, WeightsNotUpdated, publish


@dataclass
class TokentapRolloutOutput(RolloutOutput):  # type: ignore[misc]
    """`RolloutOutput` with the sample of each row."""

    samples: list[Sample]

    @property
    def entropies(self) -> list[Floats | None]:
        """Nats, one number for each of `tokens`; None for a row without entropies."""
        return [sample.entropy for sample in self.samples]


class TokentapRollout(BaseRollout):  # type: ignore[misc]
    """Samples with the engine behind tokentap; each sample is a session.

    `ClusterConfig(rollout_engine=functools.partial(TokentapRollout, client=Client(...), saver=...))` puts it into an
    `RLCluster`, which passes the first four arguments. A client that sets no `retries` retries 60 times here, which
    outlasts a restart of the engine.

    - `saver` writes weights for `update_params`; without one that call raises `WeightsNotUpdated`.
    - `version` is the number of the weights that the engine has now; each `update_params` adds one.
    - `sampling_params` holds fields that `RolloutConfig` lacks, such as `min_p`; other fields raise ValueError.
    - `entropy`: True requires entropies (`EntropyMissing`), False declines them, None leaves the choice to tokentap.
    - `session` is the prefix of the names of sessions; a number follows. By default each rollout has a new one.
    - `concurrency` is the number of concurrent requests of a batch.
    - `keep` is the number of samples that `recent` and `get_per_token_logps` know.
    """

    def __init__(
        self,
        rollout_actor: Any = None,
        tokenizer: Any = None,
        mesh: Any = None,
        rollout_config: RolloutConfig | None = None,
        *,
        client: Client,
        saver: Saver | None = None,
        version: int = 0,
        sampling_params: Mapping[str, Any] | None = None,
        entropy: bool | None = None,
        session: str | None = None,
        concurrency: int = 64,
        keep: int = 4096,
    ) -> None:
        del rollout_actor, mesh  # the engine has its own model and devices
        self._client = client._for_trainers()
        self._saver = saver
        self._version = version
        self._tokenizer = tokenizer if isinstance(tokenizer, TokenizerAdapter) else TokenizerAdapter(tokenizer)
        self._config = rollout_config
        self._extra = extra(sampling_params or {})
        self._entropy = entropy
        self._session = beginning(session)
        self._episode: ContextVar[str | None] = ContextVar("episode", default=None)
        self._lock = Lock()
        self._count = 0
        self._pool = ThreadPoolExecutor(concurrency, thread_name_prefix="tokentap")
        self._recent = Recent(keep, self.pad_id())
        self._logprobs = logprob_fields(self._client)
        self._client.set_policy(version)

    @property
    def version(self) -> int:
        """The version of the engine's weights."""
        return self._version

    def generate(
        self, prompts: str | Sequence[str], rollout_config: RolloutConfig | None = None, **kwargs: Any
    ) -> TokentapRolloutOutput:
        """One sample for each prompt; `kwargs` are further fields of `sampling_params`.

        Raises the client's `TokentapError`, `SampleUnusable` for a sample that was aborted or has no logprobs, and
        `EntropyMissing`. tokentap then still records the rest of the batch, which is not returned.
        """
        config = rollout_config if rollout_config is not None else self._config
        if config is None:
            raise ValueError("no rollout_config, in this call or at construction")
        fields = self._extra | extra(kwargs)
        # tunix's agentic learners pass a single prompt without a list
        ids = [self._encoded(str(prompt)) for prompt in ([prompts] if isinstance(prompts, str) else prompts)]
        if not ids:
            raise ValueError("no prompts")
        words = seed_words(config.seed)
        begin = self._numbered(len(ids))
        episode = self._episode.get()

        def one(row: int) -> Sample:
            number = begin + row
            seed = None if words is None else seed_of(words, number)
            params = sampling_params(config, self.eos_id(), seed) | fields
            if episode is None:
                return self._sample(ids[row], params, f"{self._session}-{number}", done=True)
            turn = episode if len(ids) == 1 else f"{episode}-{row}"
            return self._sample(ids[row], params, f"{self._session}-{turn}", done=False)

        samples = [one(0)] if len(ids) == 1 else list(self._pool.map(one, range(len(ids))))
        self._recent.add(samples)
        return TokentapRolloutOutput(
            text=[sample.text for sample in samples],
            logits=None,
            tokens=[sample.tokens for sample in samples],
            left_padded_prompt_tokens=left_padded(ids, config.max_prompt_length, self.pad_id()),
            logprobs=[sample.logprobs for sample in samples],
            samples=samples,
        )

    @contextmanager
    def episode(self, name: str) -> Iterator[None]:
        """Calls of this thread inside the block are turns of one session.

        Its name is the prefix of the rollout's sessions and `name`, and the number of the prompt if a call has several.
        Raises ValueError for an invalid name.
        """
        episode_name(self._session, name)
        token = self._episode.set(name)
        try:
            yield
        finally:
            self._episode.reset(token)

    def recent(self, completions: int | Sequence[str]) -> list[Sample]:
        """The samples of these completions, or the last n of this thread, in the order of generation.

        `RLCluster.generate` merges several calls into a plain `RolloutOutput`, which has no entropies. In a reward or
        metric function of a GRPO learner, `recent(completions)` returns the samples of the completions. Raises
        LookupError if no samples have these texts, ValueError if this thread has fewer.
        """
        return self._recent.last(completions) if isinstance(completions, int) else self._recent.of(completions)

    def get_per_token_logps(self, prompt_tokens: jax.Array, completion_tokens: jax.Array) -> jax.Array:
        """[B, T] logprobs of the sampled tokens at the time of sampling, 0 at padding.

        Learners with more than one iteration over a batch call it for the policy before the first one. Raises
        LookupError for rows that are not among the last `keep` samples.
        """
        return jnp.asarray(self._recent.logprobs(np.asarray(prompt_tokens), np.asarray(completion_tokens)))

    def update_params(self, params: Any, filter_types: tuple[Any, ...] | None = None) -> None:
        """Saves the parameters, makes the engine load them, and names tokentap's policy; raises WeightsNotUpdated.

        `filter_types` is ignored: a saver that gets only LoRA parameters must merge them.
        """
        del filter_types
        if self._saver is None:
            raise WeightsNotUpdated(NO_SAVER)
        version = self._version + 1
        # on TPU and GPU, RLCluster forbids transfers in `sync_weights`, but a saver may need them
        with jax.transfer_guard("allow"):
            path = self._saver(params, version)
        publish(self._client, path, version)
        self._version = version

    def pad_id(self) -> int:
        """The tokenizer's pad token, or its end of sequence if it has no pad token."""
        return int(self._tokenizer.pad_id())

    def eos_id(self) -> int:
        """The tokenizer's."""
        return int(self._tokenizer.eos_id())

    def model(self) -> None:
        """None, because the model is in another process: RLCluster then treats weights as not shared and
        synchronises."""
        return

    def close(self) -> None:
        """Ends the threads; the caller closes the client."""
        self._pool.shutdown(cancel_futures=True)

    def _encoded(self, prompt: str) -> Ids:
        # tunix's samplers prepend the bos id, unless it is 0 or the tokenizer has added it
        bos = self._tokenizer.bos_id()
        ids = ([bos] if bos else []) + list(self._tokenizer.encode(prompt))
        return np.array(self._tokenizer.dedup_bos_ids(ids), dtype=np.int32)

    def _numbered(self, count: int) -> int:
        with self._lock:
            begin, self._count = self._count, self._count + count
        return begin

    def _sample(self, prompt: Ids, params: dict[str, Any], session: str, *, done: bool) -> Sample:
        generation = self._client.generate(
            input_ids=prompt.tolist(),
            sampling_params=params,
            session=session,
            return_entropy=self._entropy,
            done=done,
            **self._logprobs,
        )
        sample = Sample.of(generation, prompt, session)
        return sample.with_entropy() if self._entropy else sample


def seed_words(seed: Any) -> list[int] | None:
    """The words of a seed in a form that tunix accepts: a number, or a jax key of either kind."""
    if seed is None:
        return None
    if isinstance(seed, jax.Array) and jnp.issubdtype(seed.dtype, jax.dtypes.prng_key):
        seed = jax.random.key_data(seed)
    return [int(word) for word in np.asarray(seed).ravel()]
