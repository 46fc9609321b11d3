#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make tiny random vision-language weights that SGLang loads: make_vlm.py qwen3_vl|qwen2_5_vl TOKENIZER TEMPLATE OUT SEED

Two layers of each, with the vocabulary of Qwen3, whose tokenizer has the tokens of pictures. The weights are drawn with numpy, so those of
one seed are the same on every machine. As in make_model.py, a channel of the embeddings that the output layer ignores makes the
entropies vary. The output layer reads it for the placeholders of pictures and videos only: the weights never sample them, because
SGLang cannot process a history that has one.
"""
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
import transformers

VOCABULARY, HIDDEN = 151936, 64
TOKENS = {"vision_start_token_id": 151652, "vision_end_token_id": 151653, "image_token_id": 151655, "video_token_id": 151656}
ENDS = {"bos_token_id": 151643, "eos_token_id": 151645}
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": HIDDEN, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 8192, "rope_theta": 1e6,
}
VISION = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 2, "out_hidden_size": HIDDEN, "spatial_merge_size": 2,
    "temporal_patch_size": 2,
}
FAMILIES = {
    "qwen3_vl": {
        "config": transformers.Qwen3VLConfig, "model": transformers.Qwen3VLForConditionalGeneration,
        "text": {"head_dim": 32, "rope_scaling": {"rope_type": "default", "mrope_section": [8, 4, 4], "mrope_interleaved": True}},
        "vision": {"patch_size": 16, "num_position_embeddings": 256, "deepstack_visual_indexes": [0]},
        "pixels": {"size": {"shortest_edge": 4096, "longest_edge": 262144}},
        "processor": "Qwen3VLProcessor", "image_processor": "Qwen2VLImageProcessorFast",
    },
    "qwen2_5_vl": {
        "config": transformers.Qwen2_5_VLConfig, "model": transformers.Qwen2_5_VLForConditionalGeneration,
        "text": {"rope_scaling": {"rope_type": "default", "type": "mrope", "mrope_section": [2, 3, 3]}},
        "vision": {"patch_size": 14, "window_size": 56, "fullatt_block_indexes": [1]},
        "pixels": {"min_pixels": 4096, "max_pixels": 262144},
        "processor": "Qwen2_5_VLProcessor", "image_processor": "Qwen2VLImageProcessor",
    },
}


transformers.logging.disable_progress_bar()


def draw(rng, name, shape):
    def normal(std, mean=0.0):
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(std) + np.float32(mean)

    if "embed_tokens" in name:
        values = normal(1.0)
        values[:, 0] = np.sqrt(HIDDEN) * 1.5 * np.exp(0.9 * rng.standard_normal(VOCABULARY, dtype=np.float32))
    elif name == "lm_head.weight":
        values = normal(8 * HIDDEN**-0.5)
        values[:, 0] = 0
        values[[TOKENS["image_token_id"], TOKENS["video_token_id"]]] = 0
        values[[TOKENS["image_token_id"], TOKENS["video_token_id"]], 0] = -10
    elif len(shape) == 1:
        values = normal(0.05, 0.0 if name.endswith("bias") else 1.0)
    else:
        values = normal(np.prod(shape[1:]) ** -0.5)
    return torch.from_numpy(values)


def main():
    kind, tokenizer, template, out, seed = sys.argv[1], *map(Path, sys.argv[2:5]), int(sys.argv[5])
    family = FAMILIES[kind]
    config = family["config"](
        text_config=TEXT | family["text"], vision_config=VISION | family["vision"], tie_word_embeddings=False, **TOKENS)
    model = family["model"](config).to(torch.float32)
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for name, parameter in sorted(model.named_parameters()):
            parameter.copy_(draw(rng, name, tuple(parameter.shape)))
    model.save_pretrained(out)

    def write(name, value):
        (out / name).write_text(json.dumps(value, indent=1))

    write("config.json", json.loads((out / "config.json").read_text()) | ENDS)
    shutil.copy(tokenizer / "tokenizer.json", out)
    about = json.loads((tokenizer / "tokenizer_config.json").read_text())
    write("tokenizer_config.json", about | {"processor_class": family["processor"], "chat_template": template.read_text()})
    pictures = {
        "patch_size": family["vision"]["patch_size"], "temporal_patch_size": 2, "merge_size": 2, "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3, "processor_class": family["processor"],
    }
    write("preprocessor_config.json", pictures | family["pixels"] | {"image_processor_type": family["image_processor"]})
    if kind == "qwen3_vl":
        write("video_preprocessor_config.json", pictures | family["pixels"] | {"video_processor_type": "Qwen3VLVideoProcessor"})


main()
