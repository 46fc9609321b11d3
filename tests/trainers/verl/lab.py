"""verl's own config, tokenizer and prompts, small enough for a CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

import verl
from verl import DataProto

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parents[2] / "src" / "demo" / "assets"
PROMPT, RESPONSE = 256, 96


def demo_model(folder: Path) -> Path:
    """A model folder with the demo engine's tokenizer; verl reads the config of the weights, and no weights."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(ASSETS / name, folder / name)
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 1024, "hidden_size": 8}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8}
    config |= {"head_dim": 8, "max_position_embeddings": 4096, "eos_token_id": 1019}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def config(model: Path, loops: Path, **rollout: Any) -> DictConfig:
    """verl's ppo_trainer.yaml for this model; `loops` is the agent_loop_config_path."""
    said = {
        "name": "sglang",
        "prompt_length": PROMPT,
        "response_length": RESPONSE,
        "calculate_log_probs": True,
        "temperature": 0.9,
        "agent.num_workers": 2,
        "agent.agent_loop_config_path": str(loops),
        "multi_turn.format": "hermes",
        "multi_turn.max_assistant_turns": 3,
        "multi_turn.function_tool_path": str(HERE / "tools.py"),
        **rollout,
    }
    overrides = [f"actor_rollout_ref.rollout.{name}={value}" for name, value in said.items()]
    overrides += [f"actor_rollout_ref.model.path={model}", "trainer.device=cpu"]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides)


def prompts(questions: list[str], n: int, loop: str) -> DataProto:
    """Each question `n` times in a row, as the trainer repeats them."""
    repeated = [question for question in questions for _ in range(n)]
    raw = np.empty(len(repeated), dtype=object)
    raw[:] = [[{"role": "user", "content": question}] for question in repeated]
    uid = np.array([f"group-{at // n}" for at in range(len(repeated))], dtype=object)
    index = np.array([at // n for at in range(len(repeated))])
    names = np.array([loop] * len(repeated), dtype=object)
    return DataProto.from_dict(non_tensors={"raw_prompt": raw, "uid": uid, "index": index, "agent_name": names})
