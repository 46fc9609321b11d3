# SPDX-License-Identifier: Apache-2.0
"""A Triton kernel that reads the logits once: float32, bfloat16 or float16, without temporaries.

Each program takes a share of a row and keeps (m, s, t): the largest logit so far, s = sum exp y and t = sum y exp y for
y = (l - m) / T. When m grows by T d, s becomes s e^-d and t becomes (t - d s) e^-d. A second, tiny kernel merges the
shares in a fixed order, so that the same row always gives the same number: H = log s - t / s.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

BLOCK = 4096
"""Elements a program reads at once."""
PROGRAMS = 512
"""Few rows are split into about this number of programs, enough to use every memory channel."""


# These vary with the batch. Specializing on them would compile during a step and delay the scheduler.
@triton.jit(do_not_specialize=["blocks", "shares"], do_not_specialize_on_alignment=["out"])  # type: ignore[untyped-decorator]
def _shares(  # type: ignore[no-untyped-def]
    logits,
    bias,
    temperature,
    out,
    vocab,
    logits_stride,
    bias_stride,
    blocks,
    shares,
    HAS_BIAS: tl.constexpr,
    HAS_TEMPERATURE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    part = tl.program_id(1)
    scale = 1.0
    if HAS_TEMPERATURE:
        scale = 1.0 / tl.load(temperature + row).to(tl.float32)
    top = tl.full((), float("-inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    moment = tl.full((), 0.0, tl.float32)
    # whole blocks, so that the compiler knows that each load begins at a multiple of 16 bytes
    start = part * blocks * BLOCK
    end = tl.minimum(start + blocks * BLOCK, vocab)
    for at in range(start, end, BLOCK):
        place = at + tl.arange(0, BLOCK)
        # shares are whole blocks, so only the end of the row truncates one; a mask by `vocab` keeps loads 16 bytes wide
        inside = place < vocab
        x = tl.load(logits + row * logits_stride + place, mask=inside, other=float("-inf")).to(tl.float32)
        if HAS_BIAS:
            x += tl.load(bias + row * bias_stride + place, mask=inside, other=0.0).to(tl.float32)
        found = tl.maximum(top, tl.max(x, axis=0))
        # all tokens of a share may be masked
        anchor = tl.where(found == float("-inf"), 0.0, found)
        # the clamp keeps 0 * -inf out of the sums; a NaN stays one
        y = tl.where(x == float("-inf"), -1e4, (x - anchor) * scale)
        y = tl.where(y < -1e4, -1e4, y)
        weight = tl.where(inside, tl.exp(y), 0.0)
        shift = tl.where(top == float("-inf"), 0.0, (top - anchor) * scale)
        keep = tl.where(top == float("-inf"), 0.0, tl.exp(shift))
        moment = keep * (moment + shift * total) + tl.sum(weight * y, axis=0)
        total = keep * total + tl.sum(weight, axis=0)
        top = found
    place = out + (row * shares + part) * 3
    tl.store(place, top)
    tl.store(place + 1, total)
    tl.store(place + 2, moment)


@triton.jit(do_not_specialize=["shares"], do_not_specialize_on_alignment=["partial", "out"])  # type: ignore[untyped-decorator]
def _merge(partial, temperature, out, shares, HAS_TEMPERATURE: tl.constexpr, SHARES: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    scale = 1.0
    if HAS_TEMPERATURE:
        scale = 1.0 / tl.load(temperature + row).to(tl.float32)
    part = tl.arange(0, SHARES)
    inside = part < shares
    place = partial + (row * shares + part) * 3
    top = tl.load(place, mask=inside, other=float("-inf"))
    total = tl.load(place + 1, mask=inside, other=0.0)
    moment = tl.load(place + 2, mask=inside, other=0.0)
    all_top = tl.max(top, axis=0)
    empty = top == float("-inf")
    shift = tl.where(empty, 0.0, (top - all_top) * scale)
    keep = tl.where(empty, 0.0, tl.exp(shift))
    # e^-88 is 0 in float32: smaller terms have no weight, and their shift must not produce 0 * inf
    moment = tl.sum(tl.where(keep == 0.0, 0.0, keep * (moment + shift * total)), axis=0)
    total = tl.sum(keep * total, axis=0)
    entropy = tl.log(total) - moment / total
    # not maximum(): it would hide a NaN
    tl.store(out + row, tl.where(entropy < 0.0, 0.0, entropy))


def fused_entropy(logits: torch.Tensor, bias: torch.Tensor | None, temperature: torch.Tensor | None) -> torch.Tensor:
    """[B] float32 nats of logits [B, V], bias [B, V] or None, temperature [B, 1] or None for 1. Two launches,
    without waiting."""
    rows, vocab = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    if bias is not None and bias.stride(1) != 1:
        bias = bias.contiguous()
    blocks = triton.cdiv(vocab, BLOCK)
    most = triton.next_power_of_2(blocks)
    shares = max(1, min(blocks, PROGRAMS // max(rows, 1)))
    each = triton.cdiv(blocks, shares)
    shares = triton.cdiv(blocks, each)
    # without a temperature, any valid pointer: the kernels do not read it
    given_temperature = logits if temperature is None else temperature.contiguous()
    partial = torch.empty((rows, shares, 3), dtype=torch.float32, device=logits.device)
    out = torch.empty(rows, dtype=torch.float32, device=logits.device)
    if rows == 0:
        return out
    _shares[(rows, shares)](
        logits,
        logits if bias is None else bias,
        given_temperature,
        partial,
        vocab,
        logits.stride(0),
        0 if bias is None else bias.stride(0),
        each,
        shares,
        HAS_BIAS=bias is not None,
        HAS_TEMPERATURE=temperature is not None,
        BLOCK=BLOCK,
        num_warps=8,
    )
    _merge[(rows,)](partial, given_temperature, out, shares, HAS_TEMPERATURE=temperature is not None, SHARES=most)
    return out
