# SPDX-License-Identifier: Apache-2.0
"""The latest samples, for a learner that asks about them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock, get_ident

import numpy as np

from ._sample import Floats, Ids, Sample

Key = tuple[bytes, bytes]


class Recent:
    """At most `keep` samples; the oldest are removed first. Threads may share it, and `last` is per thread.

    `pad_id` is the learner's pad token. If it is also the stop token, a padded row does not show whether a stop token
    was sampled, so trailing ones are ignored.
    """

    def __init__(self, keep: int, pad_id: int) -> None:
        if keep < 1:
            raise ValueError(f"keep must be at least 1, not {keep}")
        self._keep = keep
        self._pad_id = pad_id
        self._lock = Lock()
        # with the thread that requested it
        self._order: deque[tuple[int, Sample]] = deque()
        self._found: dict[Key, Sample] = {}

    def add(self, samples: list[Sample]) -> None:
        """Appends samples in this order."""
        with self._lock:
            for sample in samples:
                if len(self._order) == self._keep:
                    _, oldest = self._order.popleft()
                    key = self._key(oldest.prompt, oldest.tokens)
                    if self._found[key] is oldest:
                        del self._found[key]
                self._order.append((get_ident(), sample))
                # the later of two equal ones, because weights may have changed in between
                key = self._key(sample.prompt, sample.tokens)
                self._found[key] = sample

    def last(self, count: int) -> list[Sample]:
        """The last `count` samples of this thread, in the order of generation; raises ValueError if it has fewer."""
        samples = self._own()
        if not 0 <= count <= len(samples):
            raise ValueError(f"{count} samples requested, {len(samples)} kept of this thread (of all {self._keep})")
        return samples[len(samples) - count :]

    def of(self, texts: Sequence[str]) -> list[Sample]:
        """The latest consecutive samples with these texts: of this thread, else of all.

        Raises LookupError if none exist: the texts were changed, the samples are older than the last `keep`, or other
        threads sampled between them.
        """
        with self._lock:
            everyone = [sample for _, sample in self._order]
        for samples in (self._own(), everyone):
            for begin in range(len(samples) - len(texts), -1, -1):
                found = samples[begin : begin + len(texts)]
                if all(sample.text == text for sample, text in zip(found, texts, strict=True)):
                    return found
        raise LookupError(f"no {len(texts)} consecutive samples with these texts are in the last {len(everyone)}")

    def _own(self) -> list[Sample]:
        with self._lock:
            return [sample for thread, sample in self._order if thread == get_ident()]

    def logprobs(self, prompts: Ids, completions: Ids) -> Floats:
        """Logprobs [B, T] of `completions` [B, T] after `prompts` [B, P], 0 at padding; LookupError for an unknown
        row."""
        found = np.zeros(completions.shape, dtype=np.float32)
        with self._lock:
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
                sample = self._found.get(self._key(prompt, completion))
                if sample is None:
                    raise LookupError(
                        f"row {row} was not sampled by this rollout, or {self._keep} samples ago (`keep`); the "
                        "trainer must compute logprobs of other tokens"
                    )
                width = min(len(sample.logprobs), completions.shape[1])
                found[row, :width] = sample.logprobs[:width]
        return found

    def _key(self, prompt: Ids, completion: Ids) -> Key:
        begin = np.flatnonzero(prompt != self._pad_id)[:1]
        end = np.flatnonzero(completion != self._pad_id)[-1:]
        first = int(begin[0]) if begin.size else len(prompt)
        past = int(end[0]) + 1 if end.size else 0
        return prompt[first:].astype(np.int32).tobytes(), completion[:past].astype(np.int32).tobytes()
