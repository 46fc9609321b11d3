# SPDX-License-Identifier: Apache-2.0
"""Two turns per episode with tunix's own agentic GRPO learner; its trajectories are compared with tokentap's sessions."""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from demo import TOKENIZER, demo
from outcome import outcome, same_bits
from toy import cluster, reward, saver
from transformers import AutoTokenizer
from tunix.rl.agentic.agentic_grpo_learner import GRPOConfig, GRPOLearner
from tunix.rl.agentic.environments.base_environment import BaseTaskEnv, EnvStepResult
from tunix.rl.agentic.parser.chat_template_parser.parser import QwenChatTemplateParser
from tunix.rl.rollout.base_rollout import RolloutConfig

from tokentap import Client

GROUP = 3
STEPS = 2
PROMPT, ANSWER = 64, 160
# The demo's model rarely ends a turn: a bias makes <|im_end|> likelier.
ENDS = {"logit_bias": {"1019": 8.0}}
PROMPTS = [["Who keeps the lamp?", "What stands by the sea?"], ["Who wrote the letter?", "Where is the ship?"]]


class TwoPrompts(BaseTaskEnv):
    """Sends a second prompt after the first answer."""

    def __init__(self, single_example: Any, **kwargs: Any) -> None:
        super().__init__(task=single_example, max_steps=2, **kwargs)

    def _initial_observation(self) -> Any:
        return self.task

    def _step_impl(self, action: Any) -> EnvStepResult:
        return EnvStepResult(observation="And then?", reward=1.0, done=self.step_count == 2, info={})


class RecordingLearner(GRPOLearner):
    """The learner, with a session for each episode, and the trajectories that it received."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: list[dict[str, Any]] = []

    def _model_call(self, chat_lists: Any, env: Any = None, max_generation_steps: int | None = None) -> Any:
        with self.rl_cluster.rollout.episode(episode(env.extra_kwargs["group_id"], env.extra_kwargs["pair_index"])):
            return super()._model_call(chat_lists, env, max_generation_steps)

    def _process_results(self, trajectories: Any, *args: Any, **kwargs: Any) -> Any:
        self.seen += [item.traj | {"pair": item.pair_index} for item in trajectories]
        return super()._process_results(trajectories, *args, **kwargs)


def episode(group: int, pair: int) -> str:
    """The name of an episode."""
    return f"{group}-{pair}"


def recorded(paths: list[dict[str, Any]]) -> list[tuple[list[int], list[float]]]:
    """Sampled ids and logprobs of each turn, in order."""
    found = {}
    for path in paths:
        for segment in path["segments"]:
            if segment["kind"] == "response":
                span = slice(segment["start"], segment["end"])
                found[segment["turn"]] = path["token_ids"][span], path["logprobs"][span]
    return [found[turn] for turn in sorted(found)]


def check(traj: dict[str, Any], client: Client, pad: int) -> tuple[int, int, str]:
    """Compares one trajectory with its session; returns sampled tokens, turns, and how the last turn was attached."""
    name = f"agentic-{episode(traj['group_id'], traj['pair'])}"
    paths = client.trajectories(name)["trajectories"]
    turns = recorded(paths)
    sampled = np.flatnonzero(traj["conversation_masks"])
    if traj["status"] == "MAX_CONTEXT_LIMIT_REACHED" and len(sampled) < sum(len(ids) for ids, _ in turns):
        turns = turns[:-1]  # tunix discards the answer that reaches the limit
    ids = [token for each, _ in turns for token in each]
    assert traj["conversation_tokens"][sampled].tolist() == ids, f"{name}: sampled tokens are those of the record"
    logprobs = [logprob for _, each in turns for logprob in each]
    assert same_bits(traj["old_logprobs"][sampled], logprobs), f"{name}: logprobs are those of the record"
    versions = {span["version"] for path in paths for span in path["policy"]}
    assert versions == {str(traj["policy_version"])}, f"{name}: tunix and tokentap agree on the policy, not {versions}"
    prompt = np.asarray(traj["prompt_tokens"])
    first = prompt[np.flatnonzero(prompt != pad)[0] :].tolist()
    assert len(first) == paths[0]["segments"][0]["end"], f"{name}: the first prompt is as long as the record's"
    if len(paths) == 1:
        whole = [*first, *traj["conversation_tokens"].tolist()]
        assert paths[0]["token_ids"][: len(whole)] == whole, f"{name}: the path equals tunix's trajectory"
    return len(sampled), len(turns), client.session(name)["list"][-1]["cause"]


def check_all(learner: RecordingLearner, client: Client) -> str:
    """All trajectories that the learner received."""
    assert len(learner.seen) == STEPS * 2 * GROUP, f"{len(learner.seen)} trajectories"
    found = [check(traj, client, learner.rl_cluster.rollout.pad_id()) for traj in learner.seen]
    tokens, turns = sum(count for count, _, _ in found), sum(count for _, count, _ in found)
    assert turns > len(found), "some episodes have a second turn"
    causes = dict(Counter(cause for _, _, cause in found))
    return f"{len(found)} episodes, {turns} turns, {tokens} sampled tokens; last turns: {causes}"


def main() -> int:
    """Trains and runs all checks."""
    with demo() as client, tempfile.TemporaryDirectory() as name:
        tokenizer = AutoTokenizer.from_pretrained(TOKENIZER)
        rollout = RolloutConfig(
            max_tokens_to_generate=ANSWER, max_prompt_length=PROMPT, temperature=1.0, return_logprobs=True
        )
        rl = cluster(
            client, tokenizer, rollout, STEPS, saver=saver(Path(name)), session="agentic", sampling_params=ENDS
        )
        algorithm = GRPOConfig(num_generations=GROUP, max_response_length=ANSWER, use_rollout_logps=True)
        parser = QwenChatTemplateParser(tokenizer)
        learner = RecordingLearner(rl, algorithm, reward, chat_parser=parser, env_class=TwoPrompts)
        learner.train([{"prompts": np.array(batch)} for batch in PROMPTS])
        status = outcome(("trajectories equal the sessions", lambda: check_all(learner, client)))
        rl.rollout.close()
    return status


if __name__ == "__main__":
    sys.exit(main())
