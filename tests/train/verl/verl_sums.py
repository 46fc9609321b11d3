# SPDX-License-Identifier: Apache-2.0
"""The sums of python/examples/train as a task of verl: the agent loop `sums` and the reward."""

from __future__ import annotations

from typing import Any

from sums import verify
from verl.experimental.agent_loop import AgentLoopOutput
from verl.experimental.agent_loop.agent_loop import register

from tokentap.verl import SingleTurnAgentLoop


@register("sums")
class SumsAgentLoop(SingleTurnAgentLoop):  # type: ignore[misc]
    """A generation ends with its line, as in train.py."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> AgentLoopOutput:
        return await super().run({**sampling_params, "stop": ["\n"]}, **kwargs)


def compute_score(data_source: str, solution_str: str, ground_truth: str, extra_info: Any = None, **_: Any) -> float:
    """verl's `reward.custom_reward_function`."""
    return verify(solution_str, int(ground_truth))
