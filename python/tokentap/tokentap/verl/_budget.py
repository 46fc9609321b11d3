# SPDX-License-Identifier: Apache-2.0
"""The token budget of a generation, and verl's sampling parameters as SGLang's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# SGLang's and vLLM's names, in the order in which verl's SGLang server looks for them.
LIMITS = ("max_new_tokens", "max_tokens")


@dataclass(frozen=True)
class Budget:
    """Lengths in tokens, from verl's rollout config; `max_model_len` None leaves that limit to the engine."""

    prompt_length: int
    response_length: int
    max_model_len: int | None = None

    def max_new_tokens(self, sampling: Mapping[str, Any], prompt: int) -> int:
        """The budget that verl's SGLang server uses: the requested one, else the remaining room of prompt and response.

        Raises ValueError if the prompt alone exceeds the model's length.
        """
        asked = next((int(sampling[name]) for name in LIMITS if name in sampling), None)
        if asked is None:
            asked = min(self.response_length, self.prompt_length + self.response_length - prompt)
        if self.max_model_len is not None:
            # one token is kept free, as in verl
            room = self.max_model_len - prompt - 1
            if room < 0:
                raise ValueError(f"a prompt of {prompt} tokens, and max_model_len is {self.max_model_len}")
            asked = min(asked, room)
        return max(0, asked)


def engine_params(sampling: Mapping[str, Any], max_new_tokens: int) -> dict[str, Any]:
    """`sampling_params` of /generate: verl's without those that select members of the reply."""
    if "prompt_logprobs" in sampling:
        raise ValueError("prompt_logprobs: tokentap.verl does not support logprobs of the prompt")
    own = {name: value for name, value in sampling.items() if name not in (*LIMITS, "logprobs")}
    return {**own, "max_new_tokens": max_new_tokens}
