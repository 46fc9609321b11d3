# SPDX-License-Identifier: Apache-2.0
"""Entropy of softmax((logits + bias) / temperature), row by row, in nats.

With x = (l - max l) / T the entropy is log Z - E[x], Z = sum exp x: one maximum, one exponential and two sums an
element, all in float32. Against float64 it is within 2e-6 nat for logits of any scale. Not -sum p log p of a softmax:
rounding p costs 1e-4 there.
"""

from __future__ import annotations

import functools
import logging
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from tokentap_sglang.observer import Reduce

log = logging.getLogger(__name__)

ROWS_BYTES = 64 << 20
"""Bytes of each of the two temporaries of `entropy`; larger batches are processed in blocks of rows."""


def entropy(
    logits: torch.Tensor, bias: torch.Tensor | None, temperature: torch.Tensor | None, top_k: int = 0
) -> torch.Tensor:
    """[B] float32 of logits [B, V], bias [B, V] and temperature [B, 1]; NaN where a row has no finite maximum. `top_k`
    > 0 renormalises over the k largest."""
    block = max(1, ROWS_BYTES // (4 * logits.shape[-1]))
    if logits.shape[0] <= block:
        return _block(logits, bias, temperature, top_k)
    parts = []
    for at in range(0, logits.shape[0], block):
        rows = slice(at, at + block)
        some_bias = None if bias is None else bias[rows]
        some_temperature = None if temperature is None else temperature[rows]
        parts.append(_block(logits[rows], some_bias, some_temperature, top_k))
    return torch.cat(parts)


def _block(
    logits: torch.Tensor, bias: torch.Tensor | None, temperature: torch.Tensor | None, top_k: int
) -> torch.Tensor:
    x = logits.float() if bias is None else logits.float() + bias
    if 0 < top_k < x.shape[-1]:
        x = x.topk(top_k, dim=-1, sorted=False).values
    x = x - x.amax(dim=-1, keepdim=True)
    if temperature is not None:
        x.div_(temperature)
    # Masked tokens are -inf. A large negative number has weight 0 too, and its product with 0 is not NaN.
    x.clamp_(min=-1e4)
    weight = x.exp()
    total = weight.sum(dim=-1)
    values = total.log() - weight.mul_(x).sum(dim=-1) / total
    # rounding may give -1e-7 for a token with probability 1
    return values.clamp_(min=0)


def reduction(top_k: int, device: Any, vocab: int) -> tuple[Reduce, str]:
    """The function that reduces rows of `vocab` logits on this device, and its name for the log: the fused kernel on
    CUDA if it agrees with float64, else plain torch."""
    plain = functools.partial(entropy, top_k=top_k)
    if top_k == 0 and torch.device(device).type == "cuda":
        try:
            from tokentap_sglang.fused import fused_entropy

            # this vocabulary compiles the kernel now instead of at the first request
            error = disagreement(fused_entropy, device, vocab)
            if error < 1e-4:
                return fused_entropy, "a fused kernel"
            log.warning("token entropy: the fused kernel is off by %.1e nat; torch is used instead", error)
        except Exception as error:
            log.warning("token entropy: no fused kernel (%s: %s); torch is used instead", type(error).__name__, error)
    return plain, "torch"


def disagreement(reduce: Reduce, device: Any, vocab: int) -> float:
    """The largest difference from float64 in nats, over rows of several scales, masked tokens, biases and
    temperatures."""
    rows = 6
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(rows, vocab, generator=generator) * torch.logspace(-1, 1.5, rows).unsqueeze(1)
    logits[1, 7:] = -torch.inf
    bias = torch.zeros(rows, vocab)
    bias[2, vocab // 2] = 20.0
    temperature = torch.linspace(0.3, 1.5, rows).unsqueeze(1)
    worst = 0.0
    for some_bias in (None, bias):
        for some_temperature in (None, temperature):
            exact = logits.double() if some_bias is None else logits.double() + some_bias
            log_p = (exact if some_temperature is None else exact / some_temperature.double()).log_softmax(dim=-1)
            truth = -(log_p.exp() * log_p.clamp(min=-1e4)).sum(dim=-1)
            given = (None if given is None else given.to(device) for given in (some_bias, some_temperature))
            found = reduce(logits.to(device), *given)
            # a NaN counts as an infinite error
            worst = max(worst, float((found.double().cpu() - truth).abs().nan_to_num(torch.inf).max()))
    return worst
