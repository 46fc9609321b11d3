#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""distill_reference.py [--check]

Reverse KL divergences from a teacher, and the mismatch of two policies, in float64 of NumPy, as the reference for src/rl. Writes
tests/fixtures-rl/distill.json; with --check it compares that file with its result, and exits 1 if they differ.

The advantage of a token is teacher - student, in logprobs: the negative of the reverse KL divergence at the token
(thinkingmachines.ai/blog/on-policy-distillation). k1 and k3 are those of joschu.net/blog/kl-approx.html, of KL(student || teacher)."""
import argparse
import json
import pathlib
import sys

import numpy as np

from egpo_reference import close

FIXTURE = pathlib.Path(__file__).parent.parent / "fixtures-rl" / "distill.json"
SEED, CASES = 20260902, 16


def single(values):
    return [float(value) for value in np.asarray(values, np.float32)]


def statistics(ratios, cap, limit):
    if not len(ratios):
        return {"tokens": 0}
    ratio, size = np.exp(ratios), np.abs(ratios)
    # the smallest value that at least 99 % of the tokens do not exceed
    p99 = np.quantile(size, 0.99, method="inverted_cdf")
    kept = (ratio <= cap) & (ratio >= 1 / cap)
    return {
        "tokens": len(ratios), "mean": float(ratios.mean()), "k1": float(-ratios.mean()), "k3": float((np.expm1(ratios) - ratios).mean()),
        "p99": float(p99), "max": float(size.max()), "above_limit": float((size > limit).mean()),
        "tis_mean": float(np.minimum(ratio, cap).mean()), "mis_masked": float((~kept).mean()),
    }


def draw_case(rng, number):
    cap, limit = float(rng.choice([1.5, 2.0, 8.0])), float(rng.choice([0.25, 0.7, 1.5]))
    steps, advantages, own = [], [], []
    for at in range(rng.integers(1, 4)):
        prompt, count = rng.integers(10, 99, rng.integers(0 if at else 1, 4)).tolist(), int(rng.integers(1, 120 if number % 4 == 3 else 9))
        student = np.array(single(-rng.exponential(1.0, count)))
        teacher = np.array(single(student + rng.normal(0, rng.choice([1e-3, 0.3, 2.0]), count)))
        trained = bool(rng.random() < 0.8)
        steps.append({"prompt": prompt, "response": rng.integers(10, 99, count).tolist(), "logprobs": student.tolist(),
                      "teacher": teacher.tolist(), "trained": trained})
        ratios = teacher - student
        advantages += [0.0] * len(prompt) + (ratios.tolist() if trained else [0.0] * count)
        own += ratios.tolist() if trained else []
    own = np.array(own)
    kl = float(-own.mean()) if len(own) else None
    return {"cap": cap, "limit": limit, "steps": steps, "advantages": advantages, "reverse_kl": kl, "mismatch": statistics(own, cap, limit)}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    rng = np.random.default_rng(SEED)
    cases = [json.dumps(draw_case(rng, number), separators=(",", ":")) for number in range(CASES)]
    text = f'{{"seed":{SEED},"numpy":"{np.__version__}","cases":[\n' + ",\n".join(cases) + "\n]}\n"
    if not args.parse_args().check:
        FIXTURE.write_text(text)
        return 0
    ours, theirs = json.loads(text)["cases"], json.loads(FIXTURE.read_text())["cases"]
    differs = [at for at, pair in enumerate(zip(ours, theirs)) if not close(*pair)]
    print(f"{len(ours)} cases, {len(theirs)} in the fixture, different: {differs or 'none'}")
    return int(bool(differs) or len(ours) != len(theirs))


if __name__ == "__main__":
    sys.exit(main())
