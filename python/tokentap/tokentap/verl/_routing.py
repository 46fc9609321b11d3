# SPDX-License-Identifier: Apache-2.0
"""The routed experts of one rollout, for verl's routing replay (`enable_rollout_routing_replay`)."""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from .._generation import Generation
from ._problems import MissingExperts


class Routing:
    """The experts that processed each token: int32 [tokens, layers, experts per token].

    Each generation reports the tokens from the first one on that no earlier generation reported, so that a long rollout
    sends none twice, and tokens of earlier turns keep the experts of the weights that sampled them. No engine has
    processed the last token, so that it has none.
    """

    def __init__(self, layers: int, per_token: int) -> None:
        self._ids: list[int] = []
        self.rows: NDArray[np.int32] = np.empty((0, layers, per_token), np.int32)

    @classmethod
    def of_model(cls, path: str, *, trust_remote_code: bool = False) -> Routing:
        """Of a model's folder or name. ValueError if it has no experts."""
        from transformers import AutoConfig

        config = AutoConfig.from_pretrained(path, trust_remote_code=trust_remote_code)
        text = config.get_text_config() if hasattr(config, "get_text_config") else config
        layers, per_token = getattr(text, "num_hidden_layers", None), getattr(text, "num_experts_per_tok", None)
        if not layers or not per_token:
            raise ValueError(f"enable_rollout_routing_replay: {path} has no num_hidden_layers or num_experts_per_tok")
        return cls(int(layers), int(per_token))

    def start(self, prompt: Sequence[int]) -> int:
        """The number of leading tokens of a prompt whose experts are known: `routed_experts_start_len`."""
        same = next((at for at, (one, two) in enumerate(zip(self._ids, prompt, strict=False)) if one != two), None)
        return min(len(self.rows), len(self._ids) if same is None else same, len(prompt))

    def add(self, ids: Sequence[int], start: int, generation: Generation) -> bool:
        """Adds those of a reply; False if it has none. `ids` are its prompt and its sampled tokens.

        An engine that ignores `start`, as SGLang did before it had that member, reports the tokens before it again:
        their earlier rows are kept. A request that is aborted in the engine's queue reports nothing: the next one
        asks for its tokens as well.

        Raises MissingExperts if the engine reported none otherwise, or not one row for each token but the last.
        """
        payload = generation.meta_info.get("routed_experts")
        if payload is None:
            if generation.finish_reason == "abort":
                return False
            raise MissingExperts("the reply has no routed experts")
        flat = np.frombuffer(base64.b64decode(payload), np.int32)
        _, layers, per_token = self.rows.shape
        width = layers * per_token
        expected, whole = max(len(ids) - 1 - start, 0), max(len(ids) - 1, 0)
        if flat.size == whole * width:
            flat = flat[(whole - expected) * width :]
        if flat.size != expected * width:
            raise MissingExperts(f"{flat.size} experts for {expected} tokens of {layers} layers with {per_token} each")
        self.rows = np.concatenate([self.rows[:start], flat.reshape(-1, layers, per_token)])
        self._ids = list(ids)
        return True

    def of(self, prompt: Sequence[int], sampled: Sequence[int]) -> NDArray[np.int32]:
        """The experts of these tokens but the last. Without sampled tokens, the end of the prompt may have none.

        Raises MissingExperts if a token has none: verl replays zeros for it.
        """
        ids = [*prompt, *sampled]
        known = min(self.start(ids), max(len(ids) - 1, 0))
        if sampled and known < len(ids) - 1:
            raise MissingExperts(f"the experts of {len(ids) - 1 - known} tokens were not reported after an abort")
        return self.rows[:known]
