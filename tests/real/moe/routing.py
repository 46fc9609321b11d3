# SPDX-License-Identifier: Apache-2.0
"""The routing of tiny Qwen3-MoE weights: a forward pass in torch, float64, written from the architecture's definition."""
import json
from pathlib import Path

import torch
from safetensors.torch import load_file


class Routing:
    """The weights in one folder."""

    def __init__(self, folder):
        self.config = json.loads((Path(folder) / "config.json").read_text())
        self.weights = {name: tensor.double() for name, tensor in load_file(Path(folder) / "model.safetensors").items()}

    def norm(self, x, name):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config["rms_norm_eps"]) * self.weights[name]

    def attend(self, x, at):
        """Causal self-attention with grouped heads, normalised queries and keys, and rotary positions."""
        config, tokens = self.config, len(x)
        heads, groups, size = config["num_attention_heads"], config["num_key_value_heads"], config["head_dim"]

        def project(name, count):
            return (x @ self.weights[f"{at}{name}_proj.weight"].T).view(tokens, count, size)

        frequency = config["rope_theta"] ** -(torch.arange(0, size, 2).double() / size)
        angle = torch.outer(torch.arange(tokens).double(), frequency).repeat(1, 2)[:, None]

        def rotate(y):
            left, right = y.chunk(2, -1)
            return y * angle.cos() + torch.cat([-right, left], -1) * angle.sin()

        query = rotate(self.norm(project("q", heads), f"{at}q_norm.weight"))
        key = rotate(self.norm(project("k", groups), f"{at}k_norm.weight")).repeat_interleave(heads // groups, 1)
        value = project("v", groups).repeat_interleave(heads // groups, 1)
        scores = torch.einsum("qhd,khd->hqk", query, key) * size**-0.5
        scores += torch.full((tokens, tokens), -torch.inf, dtype=torch.float64).triu(1)
        mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(tokens, -1)
        return mixed @ self.weights[f"{at}o_proj.weight"].T

    def experts(self, ids):
        """For each token and layer: the sets of experts, [tokens, layers, k], and how far the last one is ahead of the next."""
        config, weights = self.config, self.weights
        k = config["num_experts_per_tok"]
        x = weights["model.embed_tokens.weight"][torch.tensor(ids)]
        chosen, margins = [], []
        for layer in range(config["num_hidden_layers"]):
            at = f"model.layers.{layer}."
            x = x + self.attend(self.norm(x, f"{at}input_layernorm.weight"), f"{at}self_attn.")
            h = self.norm(x, f"{at}post_attention_layernorm.weight")
            probability = (h @ weights[f"{at}mlp.gate.weight"].T).softmax(-1)
            best, index = probability.topk(k + 1, -1)
            chosen.append(index[:, :k])
            margins.append(best[:, k - 1] - best[:, k])
            share = best[:, :k] / best[:, :k].sum(-1, keepdim=True)
            added = torch.zeros_like(h)
            for expert in range(config["num_experts"]):
                own = f"{at}mlp.experts.{expert}."
                gate = torch.nn.functional.silu(h @ weights[f"{own}gate_proj.weight"].T)
                output = (gate * (h @ weights[f"{own}up_proj.weight"].T)) @ weights[f"{own}down_proj.weight"].T
                added += output * (share * (index[:, :k] == expert)).sum(-1, keepdim=True)
            x = x + added
        return torch.stack(chosen, 1).numpy(), torch.stack(margins, 1).numpy()
