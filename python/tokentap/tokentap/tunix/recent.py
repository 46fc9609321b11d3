"""The samples of late, from which a learner's questions about them are answered."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from threading import Lock, get_ident

import numpy as np

from .sample import Floats, Ids, Sample

Key = tuple[bytes, bytes]


class Recent:
    """At most `keep` samples, the oldest leaving first; threads may share it, and each sees its own as the last.

    `pad_id` is what a learner pads with. Where it is also the stop token a padded row does not tell whether one was
    sampled, so neither is looked at.
    """

    def __init__(self, keep: int, pad_id: int) -> None:
        if keep < 1:
            raise ValueError(f"keep: at least one sample, not {keep}")
        self._keep = keep
        self._pad_id = pad_id
        self._lock = Lock()
        # with the thread that asked for it
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
                # of two alike the later one, since weights may have changed between them
                key = self._key(sample.prompt, sample.tokens)
                self._found[key] = sample

    def last(self, count: int) -> list[Sample]:
        """The last `count` samples of this thread, in the order of generation; ValueError where it has not so many."""
        samples = self._own()
        if not 0 <= count <= len(samples):
            raise ValueError(f"{count} samples asked, {len(samples)} kept of this thread (at most {self._keep} of all)")
        return samples[len(samples) - count :]

    def of(self, texts: Sequence[str]) -> list[Sample]:
        """The latest samples with these texts that were made one behind the other: of this thread, else of all.

        LookupError where there are none: the texts were changed, or they are older than `keep` samples, or other
        threads sampled between them.
        """
        with self._lock:
            everyone = [sample for _, sample in self._order]
        for samples in (self._own(), everyone):
            for begin in range(len(samples) - len(texts), -1, -1):
                found = samples[begin : begin + len(texts)]
                if all(sample.text == text for sample, text in zip(found, texts, strict=True)):
                    return found
        raise LookupError(f"no {len(texts)} samples with these texts stand together in the last {len(everyone)}")

    def _own(self) -> list[Sample]:
        with self._lock:
            return [sample for thread, sample in self._order if thread == get_ident()]

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
