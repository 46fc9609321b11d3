#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""egpo_reference.py [--check]

GRPO and EGPO of random trajectories, by array operations in NumPy, as the reference for src/rl. Writes
tests/fixtures-rl/egpo.json; with --check it compares that file with its result, and exits 1 if they differ.

A path is split into runs: responses without a prompt token between them. In a run, the state before a token is that of the last
marker before it; a marker at the end of the prompt precedes the first token."""
import argparse
import json
import pathlib
import sys

import numpy as np

FIXTURE = pathlib.Path(__file__).parent.parent / "fixtures-rl" / "egpo.json"
SEED, CASES, THRESHOLD = 20250601, 24, 0.672
TOKENS = {"default": (151667, 151668), "own": (3, 4)}


def runs(steps):
    """The prompt, response and entropy of each run; the prompt is that of its first turn."""
    found = []
    for step in steps:
        if step["prompt"] or not found:
            found.append((np.array(step["prompt"], int), [], []))
        found[-1][1].extend(step["response"])
        found[-1][2].extend(np.nan if nats is None else nats for nats in step["entropy"])
    return [(prompt, np.array(ids, int), np.array(nats, np.float32).astype(np.float64)) for prompt, ids, nats in found]


def spans(prompt, ids, start, end):
    """The tokens inside the thinking span, and whether it exists, began in the prompt, and is unclosed."""
    if not len(ids):
        return np.zeros(0, bool), False, False, False
    markers = prompt[np.isin(prompt, (start, end))]
    line = np.concatenate([markers[-1:] if len(markers) else [end], ids])
    marked = np.isin(line, (start, end))
    last = np.maximum.accumulate(np.where(marked, np.arange(len(line)), 0))
    inside = (line[last] == start) & ~marked
    return inside[1:], bool((line == start).any()), bool(line[0] == start), bool(line[last[-1]] == start)


def think(steps, start, end):
    parts = [spans(prompt, ids, start, end) for prompt, ids, _ in runs(steps)]
    nats = np.concatenate([nats for _, _, nats in runs(steps)])
    inside = np.concatenate([part[0] for part in parts])
    present, in_prompt, left_open = (any(part[at] for part in parts) for at in (1, 2, 3))
    known, among = np.isfinite(nats), nats[inside]
    mean = float(np.nanmean(among)) if np.isfinite(among).any() else None
    share = float((nats[known] > THRESHOLD).mean()) if known.any() else None
    flags = [int(inside.sum()), present, present and not left_open, in_prompt, bool(np.isnan(among).any())]
    return mean, share, flags


def grpo(rewards, normalize_std):
    """Like verl's compute_grpo_outcome_advantage: NumPy's ddof=1 is torch.std's default."""
    rewards = np.array(rewards)
    mean, std = (rewards.mean(), rewards.std(ddof=1)) if len(rewards) > 1 else (0.0, 1.0)
    centred = rewards - mean
    return float(mean), float(std), centred / (std + 1e-6) if normalize_std else centred


def answer(request, paths):
    start, end = request.get("think_start", TOKENS["default"][0]), request.get("think_end", TOKENS["default"][1])
    steps_of = {path["session"]: path["steps"] for path in paths}
    groups = []
    for group in request["groups"]:
        rewards = [sample["reward"] for sample in group["samples"]]
        mean, std, advantages = grpo(rewards, request.get("normalize_std", True))
        samples = []
        for sample, base in zip(group["samples"], advantages):
            steps = steps_of[sample["session"]]
            entropy, share, flags = think(steps, start, end)
            shaped = base
            if request["estimator"] == "egpo" and entropy is not None:
                bound = abs(base) / request.get("alpha", 2.0)
                shaped = base + request.get("lambda", 0.4) * np.clip(entropy, -bound, bound)
            mask = "".join("0" * len(step["prompt"]) + str(int(step["trained"])) * len(step["response"]) for step in steps)
            samples.append({"advantage": float(shaped), "grpo_advantage": float(base), "H": entropy, "high_share": share,
                            "think": flags, "mask": mask})
        groups.append({"mean": mean, "std": std, "samples": samples})
    return groups


def draw_ids(rng, count, start, end):
    ids = rng.integers(10, 99, count)
    return np.where(rng.random(count) < 0.25, rng.choice([start, end], count, p=[0.35, 0.65]), ids).tolist()


def draw_step(rng, first, start, end):
    prompt = [] if not first and rng.random() < 0.3 else draw_ids(rng, rng.integers(1, 5), start, end)
    response = draw_ids(rng, rng.integers(0, 12), start, end)
    holes = rng.choice([0.0, 0.0, 0.2, 1.0])
    entropy = [None if rng.random() < holes else round(float(rng.exponential(0.6)), 3) for _ in response]
    return {"prompt": prompt, "response": response, "entropy": entropy, "trained": bool(rng.random() < 0.8)}


def draw_case(rng, number):
    start, end = TOKENS["own" if number % 3 == 2 else "default"]
    request = {"estimator": "grpo" if number % 6 == 5 else "egpo", "groups": []}
    if number % 3 == 2:
        request |= {"think_start": start, "think_end": end}
    if number % 4 == 3:
        request |= {"lambda": round(float(rng.uniform(-1, 1)), 3), "alpha": round(float(rng.uniform(0.2, 5)), 3)}
    if number % 5 == 4:
        request["normalize_std"] = False
    paths = []
    for group in range(rng.integers(1, 4)):
        samples = []
        # rewards are halves and eighths, so that the mean of equal ones is exact in both programs
        scale = rng.choice([0.5, 0.125])
        for _ in range(rng.choice([1, 2, 3, 4])):
            session = f"s{len(paths)}"
            steps = [draw_step(rng, at == 0, start, end) for at in range(rng.integers(1, 4))]
            paths.append({"session": session, "steps": steps})
            samples.append({"session": session, "reward": float(scale * rng.integers(-2, 3))})
        request["groups"].append({"id": int(group), "samples": samples})
    return {"request": request, "paths": paths, "answer": answer(request, paths)}


def main():
    args = argparse.ArgumentParser()
    args.add_argument("--check", action="store_true")
    rng = np.random.default_rng(SEED)
    cases = [json.dumps(draw_case(rng, number), separators=(",", ":")) for number in range(CASES)]
    text = f'{{"seed":{SEED},"numpy":"{np.__version__}","cases":[\n' + ",\n".join(cases) + "\n]}\n"
    if not args.parse_args().check:
        FIXTURE.parent.mkdir(exist_ok=True)
        FIXTURE.write_text(text)
        return 0
    ours, theirs = json.loads(text)["cases"], json.loads(FIXTURE.read_text())["cases"]
    differs = [at for at, pair in enumerate(zip(ours, theirs)) if not close(*pair)]
    print(f"{len(ours)} cases, {len(theirs)} in the fixture, different: {differs or 'none'}")
    return int(bool(differs) or len(ours) != len(theirs))


def close(a, b):
    """Equal except for the last bits of sums, because the order of summation depends on the version of NumPy."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(close(a[name], b[name]) for name in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(close, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return abs(a - b) <= 1e-12 * max(abs(a), abs(b), 1e-3)
    return a == b and type(a) is type(b)


if __name__ == "__main__":
    sys.exit(main())
