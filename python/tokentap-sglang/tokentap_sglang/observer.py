# SPDX-License-Identifier: Apache-2.0
"""Implements SGLang's sampling observer: copies entropies of a step from the device to the requests of their tokens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tokentap_sglang.contract import Settings
from tokentap_sglang.request import FIELD, parse_switch

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.auxiliary_output import CommittedTokens
    from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
    from sglang.srt.sampling.sampling_batch_info import SamplingBatchInfo

    Reduce = Callable[[torch.Tensor, torch.Tensor | None, torch.Tensor | None], torch.Tensor]
    """(logits [B, V], bias [B, V] or None, temperatures [B, 1] or None for 1) to entropies [B] in nats, float32."""

log = logging.getLogger(__name__)

GATE = "_tokentap_wanted"
"""Attribute of a step's `SamplingBatchInfo`: whether a request of it wants entropies. Without it the step is
measured."""


@dataclass
class ErrorCount:
    """Counts errors. They are never raised: an error in these methods would end the scheduler and the server."""

    count: int = 0

    def record(self, where: str) -> None:
        """Call it in an `except` block; it logs the 1st, 10th, 100th… error."""
        self.count += 1
        if math.log10(self.count).is_integer():
            log.exception("token entropy: %s failed, %d times by now; the values are null", where, self.count)


@dataclass(frozen=True)
class EntropyObserver:
    """Measures each step with a request that wants entropies."""

    reduce: Reduce
    settings: Settings
    errors: ErrorCount = field(default_factory=ErrorCount)

    def is_active(self, sampling_info: SamplingBatchInfo) -> bool:
        """Whether this step is measured."""
        return bool(getattr(sampling_info, GATE, True))

    def before_grammar(self, logits: torch.Tensor, sampling_info: SamplingBatchInfo) -> torch.Tensor | None:
        """Entropies [B] of logits [B, V], which include the penalties. SGLang applies grammar and bias after this call,
        so they are applied to a copy here. The sampler overwrites `logits` later, so no reference to it is kept."""
        try:
            info = sampling_info
            if info.grammar_mask is not None:
                logits = logits.clone()
                info.grammar_mask.apply(logits)
            values = self.reduce(logits, info.logit_bias, None if self.settings.original else info.temperatures)
            for entry in (info.custom_logit_processor or {}).values():
                # a custom logit processor changes these rows later
                values.index_fill_(0, entry.indices, math.nan)
            return values
        except Exception:
            self.errors.record("measuring a step")
            return None

    def after_sample(self, state: torch.Tensor, token_ids: torch.Tensor) -> DeviceEntropy:
        """The entropy does not depend on the sampled token."""
        return DeviceEntropy(state, self.settings.top_k == 0, self.errors)


@dataclass(frozen=True)
class DeviceEntropy:
    """Entropies of one step on the device; SGLang copies them together with the sampled ids, without waiting."""

    values: torch.Tensor
    full: bool
    errors: ErrorCount

    def copy_to_host(self, copy_tensor: Callable[[torch.Tensor], torch.Tensor]) -> HostEntropy:
        """Starts the copy."""
        return HostEntropy(copy_tensor(self.values), self.full, self.errors)


@dataclass(frozen=True)
class HostEntropy:
    """Entropies of one step on the host, once SGLang's own copy event has passed."""

    values: torch.Tensor
    full: bool
    errors: ErrorCount

    def consume(self, batch: ScheduleBatch, commits: Sequence[CommittedTokens | None]) -> None:
        """Assigns each value to the request that kept the token of the step. Chunked prefill, discarded steps and
        retracted requests keep no token."""
        try:
            values = self.values.tolist()
            if len(values) < len(batch.reqs):
                raise ValueError(f"{len(values)} values for {len(batch.reqs)} requests")
            for req, commit, value in zip(batch.reqs, commits, values, strict=False):
                asked = parse_switch(req.sampling_params.custom_params)
                if commit is not None and asked is not False and getattr(req, "beam_group", None) is None:
                    known = math.isfinite(value) and (self.full or asked is True)
                    _put(req, commit, value if known else None)
        except Exception:
            self.errors.record("assigning the values of a step")


def _put(req: Req, commit: CommittedTokens, value: float | None) -> None:
    """Writes the value at the index of its token; SGLang sends and slices the list like `output_ids`."""
    if req.customized_info is None:
        req.customized_info = {}
    track: list[float | None] = req.customized_info.setdefault(FIELD, [])
    del track[commit.output_index :]
    # tokens of steps that did not run here, such as the first one under prefill/decode disaggregation
    track.extend([None] * (commit.output_index - len(track)))
    track.append(value)
    track.extend([None] * (len(commit.token_ids) - 1))
