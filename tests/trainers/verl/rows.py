# SPDX-License-Identifier: Apache-2.0
"""Compares rows of a verl batch with the record of tokentap and with the full distributions of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokentap import Client

# Entropies in float64 of a distribution over the whole vocabulary before each token, nats.
Truth = Callable[[list[int]], "np.ndarray[Any, np.dtype[np.float64]]"]


@dataclass(frozen=True)
class Row:
    """One sample in the form of a trainer; lists have one entry for each token that is not padding."""

    prompt: list[int]
    response: list[int]
    mask: list[int]
    entropy: np.ndarray[Any, np.dtype[np.float32]]
    # None if verl does not request them.
    logprobs: np.ndarray[Any, np.dtype[np.float32]] | None
    session: str

    @property
    def ids(self) -> list[int]:
        return self.prompt + self.response


def rows(data: Any) -> list[Row]:
    """The rows of a DataProto, without padding."""
    batch, width = data.batch, data.batch["prompts"].shape[1]
    found = []
    for at in range(len(data)):
        there = batch["attention_mask"][at].bool()
        prompt, response = batch["prompts"][at][there[:width]], batch["responses"][at][there[width:]]
        names = ("response_mask", "rollout_entropy", "rollout_log_probs")
        cut = {name: batch[name][at][there[width:]] for name in names if name in batch}
        logprobs = cut.get("rollout_log_probs")
        found.append(
            Row(
                prompt.tolist(),
                response.tolist(),
                cut["response_mask"].tolist(),
                cut["rollout_entropy"].numpy(),
                None if logprobs is None else logprobs.numpy(),
                data.non_tensor_batch["tokentap_session"][at],
            )
        )
    return found


def shape(data: Any) -> list[str]:
    """rollout_entropy is float32 [B, response_length], and 0.0 exactly where the mask is 0."""
    entropy, mask = data.batch["rollout_entropy"], data.batch["response_mask"]
    problems = []
    if str(entropy.dtype) != "torch.float32" or entropy.shape != data.batch["responses"].shape:
        problems.append(f"{entropy.dtype} {tuple(entropy.shape)}, responses are {tuple(data.batch['responses'].shape)}")
    if bool((entropy[mask == 0] != 0.0).any()):
        problems.append("not 0.0 where response_mask is 0")
    if not bool((entropy[mask == 1] > 0.0).all()):
        problems.append("not above 0 where response_mask is 1: no distribution of these models is certain")
    return problems


def as_recorded(row: Row, client: Client) -> list[str]:
    """The row equals the only path of the session up to verl's limits, in float32."""
    paths = client.trajectories(row.session)["trajectories"]
    if len(paths) != 1:
        return [f"{len(paths)} paths in session {row.session}"]
    path, length = paths[0], len(row.ids)
    if path["token_ids"][:length] != row.ids:
        return [f"ids differ in session {row.session}"]
    mask = [0] * len(row.prompt) + row.mask
    problems = [] if path["loss_mask"][:length] == mask else [f"masks differ in session {row.session}"]
    for name, ours in (("entropy", row.entropy), ("logprobs", row.logprobs)):
        if ours is None:
            continue
        theirs = path[name][len(row.prompt) : length]
        want = np.array([0.0 if number is None else number for number in theirs], np.float32)
        if any((number is None) == bool(bit) for number, bit in zip(theirs, row.mask, strict=True)):
            problems.append(f"{name}: recorded for other than the trained tokens")
        elif not np.array_equal(want, ours):
            problems.append(f"{name}: not the same float32 in session {row.session}")
    return problems


def as_true(found: list[Row], truth: Truth, tolerance: float | None) -> tuple[list[str], str]:
    """Returns problems, and a text with the mean and largest distance of the entropies from the truth and the mean distance from the truth
    of the previous token. If the entropies were shifted by one token, the second mean would be the smaller one."""
    near, moved = [], []
    for row in found:
        true, trained = truth(row.ids)[len(row.prompt) :], np.array(row.mask, bool)
        near.append(np.abs(row.entropy - true)[trained])
        moved.append(np.abs(row.entropy[1:] - true[:-1])[trained[1:]])
    distance, other = np.concatenate(near), float(np.concatenate(moved).mean())
    note = f"{len(distance)} tokens, mean {distance.mean():.2g}, at most {distance.max():.2g}, shifted by one {other:.2g}"
    problems = [] if distance.mean() < 0.5 * other else ["not nearer to the truth than entropies shifted by one token"]
    if tolerance is not None and distance.max() > tolerance:
        problems.append(f"further than {tolerance}")
    return problems, note
