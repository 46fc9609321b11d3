#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tiny mixture-of-experts weights (Qwen3-MoE) from the dense ones of make_model.py: make_moe.py DENSE OUT SEED

Attention, embeddings and the output layer stay; each MLP becomes eight experts of which two process a token. The weights
of one seed are the same on every machine.
"""
import json
import shutil
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

EXPERTS, PER_TOKEN, WIDTH = 8, 2, 64


def main():
    dense, out, seed = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((dense / "config.json").read_text())
    weights, hidden = load_file(dense / "model.safetensors"), config["hidden_size"]
    rng = np.random.default_rng(seed)

    def normal(*shape, std):
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(std)

    for layer in range(config["num_hidden_layers"]):
        mlp = f"model.layers.{layer}.mlp."
        for name in ("gate_proj", "up_proj", "down_proj"):
            del weights[f"{mlp}{name}.weight"]
        weights[f"{mlp}gate.weight"] = normal(EXPERTS, hidden, std=hidden**-0.5)
        for expert in range(EXPERTS):
            own = f"{mlp}experts.{expert}."
            weights[f"{own}gate_proj.weight"] = normal(WIDTH, hidden, std=hidden**-0.5)
            weights[f"{own}up_proj.weight"] = normal(WIDTH, hidden, std=hidden**-0.5)
            weights[f"{own}down_proj.weight"] = normal(hidden, WIDTH, std=2 * WIDTH**-0.5)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    config.update(
        architectures=["Qwen3MoeForCausalLM"], model_type="qwen3_moe", num_experts=EXPERTS, num_experts_per_tok=PER_TOKEN,
        moe_intermediate_size=WIDTH, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[],
        output_router_logits=False, router_aux_loss_coef=0.001,
    )
    (out / "config.json").write_text(json.dumps(config, indent=1))
    for name in ("generation_config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(dense / name, out)


main()
