"""SGLang's observer contract: entropies of a step, from the device to the requests whose tokens they belong to."""

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
"""Attribute of a step's `SamplingBatchInfo`: whether any of its requests asks. Without it the step is measured."""


@dataclass
class ErrorCount:
    """Counts what went wrong. It is never raised: an error in these methods would end the scheduler, and with it the
    server."""

    count: int = 0

    def record(self, where: str) -> None:
        """To be called from an `except` block; writes a line for the 1st, 10th, 100th… time."""
        self.count += 1
        if math.log10(self.count).is_integer():
            log.exception("token entropy: %s failed, %d times by now; the values are null", where, self.count)


@dataclass(frozen=True)
class EntropyObserver:
    """Measures each step in which some request asks."""

    reduce: Reduce
    settings: Settings
    errors: ErrorCount = field(default_factory=ErrorCount)

    def is_active(self, sampling_info: SamplingBatchInfo) -> bool:
        """Whether this step is measured."""
        return bool(getattr(sampling_info, GATE, True))

    def before_grammar(self, logits: torch.Tensor, sampling_info: SamplingBatchInfo) -> torch.Tensor | None:
        """Entropies [B] of logits [B, V], which hold the penalties; grammar and bias come after this call, so they are
        applied to a copy here. The sampler overwrites `logits` later; nothing of it is kept."""
        try:
            info = sampling_info
            if info.grammar_mask is not None:
                logits = logits.clone()
                info.grammar_mask.apply(logits)
            values = self.reduce(logits, info.logit_bias, None if self.settings.original else info.temperatures)
            for entry in (info.custom_logit_processor or {}).values():
                # a user's processor changes these rows after us
                values.index_fill_(0, entry.indices, math.nan)
            return values
        except Exception:
            self.errors.record("measuring a step")
            return None

    def after_sample(self, state: torch.Tensor, token_ids: torch.Tensor) -> DeviceEntropy:
        """Which token was sampled makes no difference to the entropy."""
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
        """Hands each value to the request that has kept the step's token: not those of chunked prefill, of steps run in
        vain, of retracted requests."""
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
            self.errors.record("handing over the values of a step")


def _put(req: Req, commit: CommittedTokens, value: float | None) -> None:
    """Writes the value at the place of its token; SGLang sends and slices the list as it does `output_ids`."""
    if req.customized_info is None:
        req.customized_info = {}
    track: list[float | None] = req.customized_info.setdefault(FIELD, [])
    del track[commit.output_index :]
    # tokens of steps that were not seen here, such as the first one under prefill/decode disaggregation
    track.extend([None] * (commit.output_index - len(track)))
    track.append(value)
    track.extend([None] * (len(commit.token_ids) - 1))
