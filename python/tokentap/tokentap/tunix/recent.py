"""The samples of late, from which a learner's questions about them are answered."""

from __future__ import annotations

from collections import deque
from threading import Lock

import numpy as np

from .sample import Floats, Ids, Sample

Key = tuple[bytes, bytes]


class Recent:
    """At most `keep` samples, the oldest leaving first; threads may share it.

    `pad_id` is what a learner pads with. Where it is also the stop token a padded row does not tell whether one was
    sampled, so neither is looked at.
    """

    def __init__(self, keep: int, pad_id: int) -> None:
        if keep < 1:
            raise ValueError(f"keep: at least one sample, not {keep}")
        self._keep = keep
        self._pad_id = pad_id
        self._lock = Lock()
        self._order: deque[Sample] = deque()
        self._found: dict[Key, Sample] = {}

    def add(self, samples: list[Sample]) -> None:
        """Appends samples in this order."""
        with self._lock:
            for sample in samples:
                if len(self._order) == self._keep:
                    oldest = self._order.popleft()
                    key = self._key(oldest.prompt, oldest.tokens)
                    if self._found[key] is oldest:
                        del self._found[key]
                self._order.append(sample)
                # of two alike the later one, since weights may have changed between them
                key = self._key(sample.prompt, sample.tokens)
                self._found[key] = sample

    def last(self, count: int) -> list[Sample]:
        """The last `count` samples in the order of generation; ValueError where not so many are kept."""
        with self._lock:
            if not 0 <= count <= len(self._order):
                raise ValueError(f"{count} samples asked, {len(self._order)} kept (at most {self._keep})")
            return list(self._order)[len(self._order) - count :]

    def logprobs(self, prompts: Ids, completions: Ids) -> Floats:
        """[B, T] of `completions` [B, T] behind `prompts` [B, P], nats, 0 at padding; LookupError for another row."""
        found = np.zeros(completions.shape, dtype=np.float32)
        with self._lock:
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True)):
                sample = self._found.get(self._key(prompt, completion))
                if sample is None:
                    raise LookupError(
                        f"row {row} was not sampled by this rollout, or {self._keep} samples ago (`keep`); logprobs of "
                        "other tokens are the trainer's to compute"
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
