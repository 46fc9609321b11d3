# SPDX-License-Identifier: Apache-2.0
"""verl's agent loops, generating through tokentap."""

from __future__ import annotations

from typing import Any, Literal
from uuid import uuid4

from verl.experimental.agent_loop import agent_loop, single_turn_agent_loop, tool_agent_loop
from verl.workers.rollout.llm_server import FullyAsyncLLMServerClient

from ._alignment import align
from ._batch import ENTROPY, SOURCE
from ._budget import Budget
from ._endpoints import Addresses, Endpoint, Urls, shared
from ._engine import Engine
from ._output import EntropyOutput
from ._routing import Routing


class Tapped:
    """A mixin for an agent loop of verl: its `server_manager` is an Engine, and its output has entropies.

    `base_url` and `control_url` are each a URL or several, see `Addresses.of`. `missing_entropy` decides about a
    trained token without entropy: `raise` fails the rollout with the reason, `mask` sets its response mask to 0 and
    counts it in `extra_fields["tokentap_missing_entropy"]`. An instance runs one rollout at a time; verl makes one
    for each.
    """

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        *args: Any,
        base_url: Urls = None,
        control_url: Urls = None,
        missing_entropy: Literal["raise", "mask"] = "raise",
        **kwargs: Any,
    ) -> None:
        if missing_entropy not in ("raise", "mask"):
            raise ValueError(f"missing_entropy must be raise or mask, not {missing_entropy!r}")
        self._addresses = Addresses.of(base_url, control_url)
        self._drop = missing_entropy == "mask"
        self._trainer = trainer_config.config
        check(self._trainer)
        self._resume = resumes(self._trainer, server_manager)
        super().__init__(trainer_config, server_manager, *args, **kwargs)  # type: ignore[call-arg]

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> EntropyOutput:
        """As the loop of verl; raises EntropyProblem if the entropy of a trained token is unknown."""
        with shared(self._addresses).rollout() as endpoint:
            engine = self._engine(endpoint, sync_step(self._trainer, kwargs))
            self.server_manager = engine
            output = await super().run(sampling_params, **kwargs)  # type: ignore[misc]
        return self._with_entropy(output, engine)

    def _engine(self, endpoint: Endpoint, step: int | None) -> Engine:
        rollout = self._trainer.actor_rollout_ref.rollout
        budget = Budget(rollout.prompt_length, rollout.response_length, rollout.get("max_model_len"))
        routing = None
        if rollout.get("enable_rollout_routing_replay"):
            model = self._trainer.actor_rollout_ref.model
            routing = Routing.of_model(model.path, trust_remote_code=bool(model.get("trust_remote_code")))
        # of the loop's processor, which is None for a model without pictures
        placeholder = getattr(getattr(self, "processor", None), "image_token_id", None)
        return Engine(
            endpoint, uuid4().hex, budget, resume=self._resume, step=step, routing=routing, placeholder=placeholder
        )

    def _with_entropy(self, output: agent_loop.AgentLoopOutput, engine: Engine) -> EntropyOutput:
        fields = {name: getattr(output, name) for name in type(output).model_fields}
        if not output.response_mask:
            # verl's tool loop returns the prompt as the response if nothing was sampled
            fields["response_ids"] = []
        aligned = align(
            engine.sampled, output.prompt_ids, fields["response_ids"], output.response_mask, drop=self._drop
        )
        fields["response_mask"] = aligned.mask
        fields["extra_fields"] = {
            **output.extra_fields,
            ENTROPY: aligned.entropy,
            "tokentap_session": engine.session,
            "tokentap_missing_entropy": aligned.missing,
            SOURCE: ",".join(sorted(aligned.sources)) or "none",
        }
        return EntropyOutput(**fields)


def check(trainer: Any) -> None:
    """Refuses features that verl's server class requests from SGLang and this class does not support."""
    model, rollout = trainer.actor_rollout_ref.model, trainer.actor_rollout_ref.rollout
    lora = model.get("lora") or {}
    if (model.get("lora_rank") or lora.get("rank") or 0) > 0 and not lora.get("merge", False):
        raise ValueError("tokentap.verl uses the base model: a LoRA adapter must be merged (model.lora.merge)")
    if (rollout.get("disaggregation") or {}).get("enabled"):
        raise ValueError("rollout.disaggregation: verl pairs prefill and decode by other calls than /generate")


def resumes(trainer: Any, server_manager: Any) -> bool:
    """Whether verl continues a generation that was aborted for new weights."""
    partial = trainer.async_training.partial_rollout if trainer.get("async_training") else True
    return isinstance(server_manager, FullyAsyncLLMServerClient) and bool(partial)


def sync_step(trainer: Any, sample: dict[str, Any]) -> int | None:
    """The step of the sampling weights in verl's synchronous trainer, which updates them after each step; else unknown.

    Only that trainer gives its step to an agent loop, and its metrics need the number.
    """
    step = sample.get("global_steps")
    mode = (trainer.get("trainer") or {}).get("v1", {}).get("trainer_mode")
    return None if step is None or mode != "sync" else int(step) - 1


class SingleTurnAgentLoop(Tapped, single_turn_agent_loop.SingleTurnAgentLoop):  # type: ignore[misc]
    """verl's `single_turn_agent`."""


class ToolAgentLoop(Tapped, tool_agent_loop.ToolAgentLoop):  # type: ignore[misc]
    """verl's `tool_agent`."""
