#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""make_lora.py --model DIR --out DIR --seed N   writes a random LoRA adapter of rank 8 for q_proj and v_proj of the model."""
import argparse
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

RANK = 8
args = argparse.ArgumentParser()
args.add_argument("--model", type=Path, required=True)
args.add_argument("--out", type=Path, required=True)
args.add_argument("--seed", type=int, required=True)
args = args.parse_args()
random = np.random.default_rng(args.seed)
config = json.loads((args.model / "config.json").read_text())
hidden, head = config["hidden_size"], config["head_dim"]
rows = {"q_proj": config["num_attention_heads"] * head, "v_proj": config["num_key_value_heads"] * head}
tensors = {}
for layer in range(config["num_hidden_layers"]):
    for module, count in rows.items():
        name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
        tensors[f"{name}.lora_A.weight"] = random.normal(0, hidden**-0.5, (RANK, hidden)).astype(np.float32)
        tensors[f"{name}.lora_B.weight"] = random.normal(0, 0.03, (count, RANK)).astype(np.float32)
args.out.mkdir(exist_ok=True)
save_file(tensors, args.out / "adapter_model.safetensors", metadata={"format": "pt"})
adapter = {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": str(args.model), "r": RANK}
adapter |= {"lora_alpha": 2 * RANK, "lora_dropout": 0.0, "bias": "none", "target_modules": list(rows), "inference_mode": True}
(args.out / "adapter_config.json").write_text(json.dumps(adapter))
