# SPDX-License-Identifier: Apache-2.0
"""The config, tokenizer and prompts for verl, small enough for a CPU."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import verl
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig
from verl import DataProto

HERE = Path(__file__).resolve().parent
ASSETS = HERE.parents[2] / "src" / "demo" / "assets"
# Tokens.
PROMPT, RESPONSE = 256, 200
# The prefix that makes the demo model call tools; for verl it is part of the generation prompt.
THOUGHT = "<think>\nI should look in the book. I will call"


def demo_model(folder: Path, *, thought: str = "") -> Path:
    """A model folder with the demo engine's tokenizer; verl reads the config, but no weights."""
    folder.mkdir(parents=True)
    shutil.copy(ASSETS / "tokenizer.json", folder)
    tokenizer = json.loads((ASSETS / "tokenizer_config.json").read_text())
    begin = "<|im_start|>assistant\\n"
    template = (ASSETS / "chat_template.jinja").read_text()
    head, _, tail = template.rpartition(begin)
    tokenizer["chat_template"] = head + begin + thought.replace("\n", "\\n") + tail
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    config = {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": 1024, "hidden_size": 8}
    config |= {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 8}
    config |= {"head_dim": 8, "max_position_embeddings": 4096}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def loops(file: Path, base: str, control: str | None, **options: str) -> Path:
    """An agent_loop_config_path with both loops."""
    settings = {"base_url": base, "control_url": control, **options}
    classes = {"tokentap_agent": "SingleTurnAgentLoop", "tokentap_tool_agent": "ToolAgentLoop"}
    # JSON is YAML
    file.write_text(
        json.dumps([{"name": name, "_target_": f"tokentap.verl.{of}", **settings} for name, of in classes.items()])
    )
    return file


def config(model: Path, loops: Path, **rollout: Any) -> DictConfig:
    """verl's ppo_trainer.yaml for this model; `loops` is the agent_loop_config_path."""
    settings = {
        "name": "sglang",
        "prompt_length": PROMPT,
        "response_length": RESPONSE,
        "calculate_log_probs": True,
        "agent.num_workers": 2,
        "agent.agent_loop_config_path": loops,
        "multi_turn.format": "hermes",
        "multi_turn.max_assistant_turns": 3,
        "multi_turn.function_tool_path": HERE / "tools.py",
        **rollout,
    }
    overrides = [f"actor_rollout_ref.rollout.{name}={value}" for name, value in settings.items()]
    overrides += [f"actor_rollout_ref.model.path={model}", "trainer.device=cpu"]
    overrides += ["transfer_queue.backend.SimpleStorage.num_data_storage_units=1"]
    with initialize_config_dir(str(Path(verl.__file__).parent / "trainer" / "config"), version_base=None):
        return compose("ppo_trainer", overrides)


def prompts(questions: list[str], n: int, loop: str) -> DataProto:
    """Each question `n` times in a row, as the older trainer repeats them."""
    repeated = [question for question in questions for _ in range(n)]
    return DataProto.from_dict(
        non_tensors={
            "raw_prompt": objects([[{"role": "user", "content": question}] for question in repeated]),
            "uid": objects([f"group-{at // n}" for at in range(len(repeated))]),
            "index": np.array([at // n for at in range(len(repeated))]),
            "agent_name": objects([loop] * len(repeated)),
        }
    )


def objects(values: list[Any]) -> Any:
    """A NumPy array of objects, also if they are lists of equal length."""
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array
