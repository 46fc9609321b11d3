# SPDX-License-Identifier: Apache-2.0
"""The served weights over given tokens, computed with numpy in float64: the distribution that each token was sampled from."""

import json
import pathlib

import numpy as np
from safetensors.numpy import load_file


class Weights:
    """A Qwen3 model directory with one file of weights."""

    def __init__(self, directory):
        directory = pathlib.Path(directory)
        self.config = json.loads((directory / "config.json").read_text())
        self.tensors = {name: value.astype(np.float64) for name, value in load_file(directory / "model.safetensors").items()}

    def logprobs(self, prompt, output, temperature=1.0):
        """One row over the vocabulary for each token of `output`: log softmax(logits / temperature)."""
        rows = self._logits(prompt + output[:-1])[len(prompt) - 1 :] / temperature
        rows -= rows.max(-1, keepdims=True)
        return rows - np.log(np.exp(rows).sum(-1, keepdims=True))

    def _logits(self, ids):
        config = self.config
        heads, pairs, width = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]
        steps, positions = len(ids), np.arange(len(ids))
        angles = positions[:, None] * config["rope_theta"] ** (-np.arange(0, width, 2) / width)
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        future = positions[None, :] > positions[:, None]

        def rotated(x):
            low, high = np.split(x, 2, -1)
            return np.concatenate([low * cos - high * sin, high * cos + low * sin], -1)

        hidden = self.tensors["model.embed_tokens.weight"][ids]
        for layer in range(config["num_hidden_layers"]):

            def linear(x, name, layer=layer):
                return x @ self.tensors[f"model.layers.{layer}.{name}.weight"].T

            def norm(x, name, layer=layer):
                return self._norm(x, f"model.layers.{layer}.{name}.weight")

            x = norm(hidden, "input_layernorm")
            query = rotated(norm(linear(x, "self_attn.q_proj").reshape(steps, heads, width), "self_attn.q_norm"))
            key = rotated(norm(linear(x, "self_attn.k_proj").reshape(steps, pairs, width), "self_attn.k_norm"))
            value = linear(x, "self_attn.v_proj").reshape(steps, pairs, width)
            key, value = (np.repeat(each, heads // pairs, 1) for each in (key, value))
            scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(width)
            scores[:, future] = -np.inf
            shares = np.exp(scores - scores.max(-1, keepdims=True))
            shares /= shares.sum(-1, keepdims=True)
            mixed = np.einsum("hqk,khd->qhd", shares, value).reshape(steps, heads * width)
            hidden = hidden + linear(mixed, "self_attn.o_proj")
            x = norm(hidden, "post_attention_layernorm")
            gate = linear(x, "mlp.gate_proj")
            hidden = hidden + linear(gate / (1 + np.exp(-gate)) * linear(x, "mlp.up_proj"), "mlp.down_proj")
        return self._norm(hidden, "model.norm.weight") @ self.tensors["lm_head.weight"].T

    def _norm(self, x, name):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.tensors[name]


def entropies(logprobs):
    """Nats, one number a row."""
    return -(np.exp(logprobs) * logprobs).sum(-1)
