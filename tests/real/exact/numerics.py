#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""numerics.py   compares the two reductions of the plugin with float64, and compiles the fused one for GPUs.

Without a GPU the fused kernel runs in Triton's interpreter: its arithmetic is checked, its speed and its machine code are not.
Compiling for sm_80, sm_90 and sm_100 needs no GPU; the loads must be 16 bytes wide and no register may spill."""
import os
import re
import subprocess
import sys
import tempfile

INTERPRETED = "--compile" not in sys.argv
if INTERPRETED:
    os.environ["TRITON_INTERPRET"] = "1"  # read when triton is imported

import torch  # noqa: E402
import triton  # noqa: E402
from tokentap_sglang.entropy import disagreement, entropy  # noqa: E402
from tokentap_sglang import fused  # noqa: E402

torch.set_num_threads(1)
failed = 0


def report(name, problem, note=""):
    global failed
    failed += bool(problem)
    print(f"{'FAIL' if problem else 'ok':5} numerics  {name:44} {problem or note}", flush=True)


def truth(logits, temperature):
    logp = (logits.double() / temperature.double()).log_softmax(-1)
    return -(logp.exp() * logp.clamp(min=-1e4)).sum(-1)


def against_float64():
    torch.manual_seed(0)
    for name, reduce, vocab in (("torch", entropy, 151_936), ("fused", fused.fused_entropy, 20_000)):
        error = disagreement(reduce, "cpu", vocab)
        report(f"{name}: masks, biases, scales", not error <= 1e-5 and f"off by {error:.1e}", f"off by {error:.1e}")
        worst = 0.0
        for scale in (0.01, 1.0, 10.0, 100.0):
            for temperature in (1e-5, 0.3, 1.0, 5.0):
                for rows, size in ((1, 1), (1, 5), (3, 4096), (2, 4097), (40, 700), (1, vocab)):
                    logits, t = torch.randn(rows, size) * scale, torch.full((rows, 1), temperature)
                    error = (reduce(logits, None, t) - truth(logits, t)).abs().nan_to_num(torch.inf)
                    worst = max(worst, float(error.max()))
        report(f"{name}: scales 0.01 to 100, T 1e-5 to 5", not worst <= 1e-5 and f"off by {worst:.1e}", f"off by {worst:.1e}")
        odd = torch.randn(5, 9000)
        odd[0], odd[1, 5:], odd[2, 0], odd[3, :8192], odd[4, 8] = -torch.inf, -torch.inf, torch.inf, -torch.inf, torch.nan
        found, exact = reduce(odd, None, None), truth(odd, torch.ones(1))
        known = found.isfinite().tolist()
        report(f"{name}: rows without an entropy are NaN", known != [False, True, False, True, False] and f"{found}")
        error = float((found - exact)[[1, 3]].abs().max())
        report(f"{name}: rows that are masked in part", not error <= 1e-5 and f"off by {error:.1e}", f"off by {error:.1e}")
        half = torch.randn(3, 5000).bfloat16()
        error = float((reduce(half, None, None) - truth(half, torch.ones(1))).abs().max())
        report(f"{name}: bfloat16 logits", not error <= 1e-5 and f"off by {error:.1e}", f"off by {error:.1e}")
    some = torch.randn(8, 5000) * 3
    exact = truth(some.topk(20, -1).values, torch.ones(1))
    error = float((entropy(some, None, None, top_k=20) - exact).abs().max())
    report("torch: the 20 largest", not error <= 1e-5 and f"off by {error:.1e}", f"off by {error:.1e}")
    for rows in (100, 700):  # more rows than fit in one block of temporaries
        some, t = torch.randn(rows, 151_936 // 4), torch.rand(rows, 1) + 0.5
        error = float((entropy(some, None, t) - truth(some, t)).abs().max())
        report(f"torch: {rows} rows in blocks", not error <= 1e-5 and f"off by {error:.1e}", f"off by {error:.1e}")


def compiles():
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    dump = os.path.join(os.path.dirname(triton.__file__), "backends/nvidia/bin/cuobjdump")
    aligned = {(at,): [["tt.divisibility", 16]] for at in (0, 1, 4, 5, 6)}
    for capability in (80, 90, 100):
        for logits in ("*fp32", "*bf16"):
            for bias in (True, False):
                types = {"logits": logits, "bias": "*fp32", "temperature": "*fp32", "out": "*fp32", "vocab": "i32",
                         "logits_stride": "i32", "bias_stride": "i32", "blocks": "i32", "shares": "i32",
                         "HAS_BIAS": "constexpr", "HAS_TEMPERATURE": "constexpr", "BLOCK": "constexpr"}
                constants = {"HAS_BIAS": bias, "HAS_TEMPERATURE": True, "BLOCK": fused.BLOCK}
                source = ASTSource(fn=fused._shares, signature=types, constexprs=constants, attrs=aligned)
                kernel = triton.compile(source, target=GPUTarget("cuda", capability, 32), options={"num_warps": 8})
                wide = len(re.findall(r"ld\.global\.v4\.b32", kernel.asm["ptx"]))
                with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
                    file.write(kernel.asm["cubin"])
                    file.flush()
                    usage = subprocess.run([dump, "-res-usage", file.name], capture_output=True, text=True).stdout
                stack = re.search(r"STACK:(\d+)", usage)
                registers = re.search(r"REG:(\d+)", usage)
                problem = (not wide and "no load is 16 bytes wide") or (stack is None and f"no usage: {usage}")
                problem = problem or (int(stack[1]) > 0 and f"{stack[1]} bytes of stack")
                name = f"sm_{capability}, {logits[1:]}{', bias' if bias else ''}"
                report(name, problem, f"{wide} wide loads, {registers and registers[1]} registers, no stack")


against_float64() if INTERPRETED else compiles()
sys.exit(failed > 0)
