# SPDX-License-Identifier: Apache-2.0
"""Compares a sample with the session that tokentap recorded."""

from __future__ import annotations

from outcome import same_bits

from tokentap import Client
from tokentap.tunix import Sample


def equals_record(client: Client, sample: Sample, policy: tuple[str, str]) -> int:
    """Checks ids, logprobs, entropies and `(version, weight_version)` of the policy; returns the number of sampled tokens."""
    (path,) = client.trajectories(sample.session)["trajectories"]
    sampled = [at for at, mask in enumerate(path["loss_mask"]) if mask]
    assert path["token_ids"] == [*sample.prompt.tolist(), *sample.tokens.tolist()], "ids are those of the record"
    assert same_bits(sample.logprobs, [path["logprobs"][at] for at in sampled]), "logprobs are those of the record"
    assert sample.entropy is not None, "the sample has entropies"
    assert same_bits(sample.entropy, [path["entropy"][at] for at in sampled]), "entropies are those of the record"
    names = {(span["version"], span["weight_version"]) for span in path["policy"]}
    assert names == {policy}, f"sampled from {policy}, not {names}"
    return len(sampled)
