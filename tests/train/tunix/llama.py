# SPDX-License-Identifier: Apache-2.0
"""tunix's Llama 3 with the weights of a Hugging Face folder, and back."""

from __future__ import annotations

import functools
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from safetensors.numpy import load_file, save_file
from tunix.models.llama3 import model as llama3
from tunix.models.llama3 import params

Tensors = dict[str, Any]

WEIGHTS = "model.safetensors"
# parts of tunix's names, and those of Hugging Face
NAMES = (
    (r"^embedder\.input_embedding$", "model.embed_tokens.weight"),
    (r"^final_norm", "model.norm"),
    (r"^layers", "model.layers"),
    (r"\.attn\.", ".self_attn."),
    (r"\.(w|kernel)$", ".weight"),
)


def load(folder: Path, mesh: jax.sharding.Mesh) -> nnx.Module:
    """The model in float32."""
    found = json.loads((folder / "config.json").read_text())
    config = llama3.ModelConfig(
        num_layers=found["num_hidden_layers"],
        vocab_size=found["vocab_size"],
        embed_dim=found["hidden_size"],
        hidden_dim=found["intermediate_size"],
        num_heads=found["num_attention_heads"],
        head_dim=found["head_dim"],
        num_kv_heads=found["num_key_value_heads"],
        rope_theta=int(found["rope_theta"]),
        norm_eps=found["rms_norm_eps"],
        weight_tying=found["tie_word_embeddings"],
    )
    # tunix 0.1.7 ignores `rope_theta` in this model: each call takes the default of this function, 1,000,000
    llama3.apply_rope = functools.partial(llama3.apply_rope, rope_theta=config.rope_theta)
    return params.create_model_from_safe_tensors(str(folder), config, mesh, dtype=jnp.float32)


def tensors(state: Any) -> Tensors:
    """Parameters with the names and shapes of Hugging Face."""
    return dict(tensor(".".join(map(str, path)), np.asarray(leaf[...])) for path, leaf in state.flat_state())


def tensor(name: str, value: Any) -> tuple[str, Any]:
    """One of them."""
    if re.search(r"\.[qkv]_proj\.w$", name):
        value = value.reshape(len(value), -1)
    elif name.endswith(".o_proj.w"):
        value = value.reshape(-1, value.shape[-1])
    # tunix has [input, output]
    value = value.T if "_proj." in name else value
    for pattern, other in NAMES:
        name = re.sub(pattern, other, name)
    return name, np.ascontiguousarray(value)


def differ(folder: Path, state: Any) -> list[str]:
    """The tensors that are not those of the folder, bit by bit."""
    stored, made = load_file(folder / WEIGHTS), tensors(state)
    return sorted(name for name in stored.keys() | made.keys() if not np.array_equal(stored.get(name), made.get(name)))


def saver(source: Path, work: Path) -> Callable[[Any, int], Path]:
    """Returns a saver that writes a folder like `source` for each version, and keeps the last two."""

    def save(state: Any, version: int) -> Path:
        new, folder = work / f"{version}.new", work / str(version)
        shutil.rmtree(new, ignore_errors=True)
        shutil.copytree(source, new, ignore=shutil.ignore_patterns(WEIGHTS))
        save_file(tensors(state), new / WEIGHTS, metadata={"format": "pt"})
        # after a failed update the same version is written again
        shutil.rmtree(folder, ignore_errors=True)
        shutil.rmtree(work / str(version - 2), ignore_errors=True)
        return new.rename(folder)

    return save
