# SPDX-License-Identifier: Apache-2.0
"""Replaces verl's LLM client in one rollout: it generates through tokentap and stores the entropies."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from verl.utils.rollout_trace import rollout_trace_op
from verl.workers.rollout.replica import TokenOutput

from .._generation import Generation
from . import _versions as versions
from ._alignment import Sampled
from ._budget import LIMITS, Budget, engine_params
from ._endpoints import Endpoint
from ._pictures import Encoder, collapsed
from ._problems import Unaligned
from ._routing import Routing

# Seconds that verl waits before it continues a generation that was aborted for new weights.
PAUSE = 1.0


@dataclass
class Part:
    """The tokens of one prompt so far, from one or several requests."""

    token_ids: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    entropy: list[float | None] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    all_versions_known: bool = True
    preempted: int = 0
    reason: str | None = None
    sources: set[str] = field(default_factory=set)
    finish: str | None = "length"

    def add(self, generation: Generation, seen: list[int], *, with_logprobs: bool, trains: bool = True) -> None:
        """Appends a reply, whose lists must have one entry for each token; `seen` is the versions of all tokens, or
        empty. Its tokens are dropped unless it `trains`."""
        ids, logprobs = generation.output_ids, generation.logprobs
        self.finish = generation.finish_reason
        self.preempted += generation.meta_info.get("num_retractions") or 0
        if not trains:
            return
        if with_logprobs:
            if logprobs is None or len(logprobs) != len(ids) or None in logprobs:
                if self.finish == "abort":
                    # verl drops these too: a token without logprob cannot be trained and is sampled again
                    return
                raise Unaligned(f"{len(logprobs or [])} logprobs for {len(ids)} tokens")
            self.log_probs += [float(one) for one in logprobs if one is not None]
        info = generation.entropy_info or {"reason": "tokentap computes none (--entropy off)"}
        entropy = generation.entropy if generation.entropy is not None else [None] * len(ids)
        if len(entropy) != len(ids):
            raise Unaligned(f"{len(entropy)} entropies for {len(ids)} tokens")
        self.reason = info.get("reason") or self.reason
        if any(nats is not None for nats in entropy):
            self.sources.add(str(info.get("source")))
        self.token_ids += ids
        self.entropy += entropy
        self.versions += seen
        if ids and not seen:
            self.all_versions_known = False

    def steps(self, step: int | None) -> dict[str, int | None]:
        """verl's global steps; `step` is used if the version of a token is unknown."""
        return versions.steps(self.versions if self.all_versions_known else [], step)


class Engine:
    """The `server_manager` of one rollout: one session at one tokentap.

    `sampled` has the result of each call of `generate`. With `resume`, generations that the engine aborted are
    continued, as by verl's client for partial rollouts. `step` is the version of the weights if no other source names
    it. With `routing`, results have the routed experts of all tokens but the last. `placeholder` is the id that the
    processor expands for each picture; without it pictures are refused.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        session: str,
        budget: Budget,
        *,
        resume: bool,
        step: int | None,
        routing: Routing | None = None,
        placeholder: int | None = None,
    ) -> None:
        self.session = session
        self._placeholder = placeholder
        self._routing = routing
        self._encoder = Encoder()
        self.sampled: list[Sampled] = []
        self._endpoint, self._budget = endpoint, budget
        self._resume, self._step = resume, step

    @rollout_trace_op  # type: ignore[untyped-decorator]
    async def generate(
        self,
        request_id: str,
        *,
        prompt_ids: Sequence[int],
        sampling_params: Mapping[str, Any],
        image_data: Any = None,
        video_data: Any = None,
        audio_data: Any = None,
        **_: Any,
    ) -> TokenOutput:
        """Returns what verl's client returns; other arguments concern verl's own servers and are ignored."""
        if video_data or audio_data:
            raise ValueError("tokentap.verl sends token ids and pictures: videos and sound are not supported")
        if image_data and self._placeholder is None:
            raise ValueError("tokentap.verl needs image_token_id of the model's processor to send pictures")
        pictures = await self._encoder.data_uris(image_data or ())
        prompt = [int(one) for one in prompt_ids]
        with_logprobs = bool(sampling_params.get("logprobs", False))
        part = Part()
        limit = self._limit(sampling_params, len(prompt))
        while limit > len(part.token_ids):
            await self._ask(part, prompt, pictures, sampling_params, limit - len(part.token_ids), with_logprobs)
            if self._resume and len(part.token_ids) >= limit:
                # as in verl's client for partial rollouts, for every finish reason
                part.finish = "length"
            if part.finish != "abort" or not self._resume:
                break
            await asyncio.sleep(PAUSE)
        sources = frozenset(part.sources)
        self.sampled.append(Sampled(prompt, list(part.token_ids), list(part.entropy), part.reason, sources))
        return TokenOutput(
            token_ids=part.token_ids,
            log_probs=part.log_probs if with_logprobs else None,
            routed_experts=self._routing.of(prompt, part.token_ids) if self._routing else None,
            stop_reason=part.finish,
            num_preempted=part.preempted,
            extra_fields=dict(part.steps(self._step)),
        )

    def _limit(self, sampling: Mapping[str, Any], prompt: int) -> int:
        if self._resume:
            # verl's client for partial rollouts looks for vLLM's name first, and without it requests a whole response
            asked = (sampling[name] for name in reversed(LIMITS) if name in sampling)
            sampling = {LIMITS[0]: next(asked, self._budget.response_length)}
        return self._budget.max_new_tokens(sampling, prompt)

    async def _ask(
        self,
        part: Part,
        prompt: list[int],
        pictures: list[str],
        sampling: Mapping[str, Any],
        room: int,
        with_logprobs: bool,
    ) -> None:
        # the policy is requested before and after, because weights may change in between
        before = None if self._endpoint.replies_tell else await self._endpoint.policy.version()
        ids = prompt + part.token_ids
        start = self._routing.start(ids) if self._routing else 0
        fields: dict[str, Any] = {}
        if self._routing:
            fields = {"return_routed_experts": True, "routed_experts_start_len": start}
        sent = ids
        if pictures and self._placeholder is not None:
            sent = collapsed(ids, self._placeholder)
            fields["image_data"] = pictures
        generation = await self._endpoint.client.generate(
            input_ids=sent,
            sampling_params=engine_params(sampling, room),
            session=self.session,
            rid=uuid4().hex,
            return_logprob=with_logprobs,
            return_entropy=True,
            **fields,
        )
        expanded = generation.meta_info.get("prompt_tokens")
        # a request that is aborted before it runs has no count
        if pictures and expanded is not None and expanded != len(ids):
            # the positions of all later tokens would differ
            raise Unaligned(
                f"the engine made a prompt of {expanded} tokens with the pictures, verl's processor {len(ids)}"
            )
        has_experts = not self._routing or self._routing.add(ids + generation.output_ids, start, generation)
        seen = versions.of_reply(generation.meta_info)
        self._endpoint.replies_tell = bool(seen)
        if not seen and before is not None:
            seen = versions.numbers([before, await self._endpoint.policy.version()])
        # a continuation reports the experts of these tokens too
        part.add(generation, seen, with_logprobs=with_logprobs, trains=has_experts or self._resume)
