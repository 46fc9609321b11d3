#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""steps_reference.py [--check]

GRPO over the discounted returns of turns, in NumPy, as the reference for src/rl. Writes tests/fixtures-rl/steps.json; with --check it
compares that file with its result, and exits 1 if they differ.

The return of a turn is a product with the matrix of discounts, not a recursion: entry (t, k) is discount ** (steps between t and k) for k >= t.
A turn without a prompt is the same step as the turn before it. The reward of the path is added to that of the last turn."""
import argparse
import json
import pathlib
import sys

import numpy as np

from egpo_reference import TOKENS, close, draw_step, grpo, think

FIXTURE = pathlib.Path(__file__).parent.parent / "fixtures-rl" / "steps.json"
SEED, CASES = 20260901, 24


def returns(path, discount):
    steps = path["steps"]
    rewards = np.array([step["reward"] or 0.0 for step in steps])
    rewards[-1] += path["reward"] or 0.0
    step = np.cumsum([bool(step["prompt"]) for step in steps])
    ahead = step[None, :] - step[:, None]
    weights = np.triu(np.power(discount, np.maximum(ahead, 0).astype(float)))
    return weights @ rewards


def answer(request, paths):
    of_session = {path["session"]: path for path in paths}
    groups = []
    for group in request["groups"]:
        members = [of_session[sample["session"]] for sample in group["samples"]]
        values = [returns(path, request["discount"]) for path in members]
        trained = [np.array([step["trained"] for step in path["steps"]]) for path in members]
        every = np.concatenate([value[mask] for value, mask in zip(values, trained)])
        mean, std, advantages = grpo(every, request.get("normalize_std", True)) if len(every) else (0.0, 1.0, every)
        advantages, samples = iter(advantages), []
        for path, value, mask in zip(members, values, trained):
            entropy, _, _ = think(path["steps"], *TOKENS["default"])
            turns = []
            for at in np.flatnonzero(mask):
                base = next(advantages)
                shaped = base
                if request["estimator"] == "egpo" and entropy is not None:
                    shaped = base + 0.4 * np.clip(entropy, -abs(base) / 2, abs(base) / 2)
                turns.append([int(at), float(value[at]), float(base), float(shaped)])
            samples.append(turns)
        groups.append({"mean": float(mean), "std": float(std), "samples": samples})
    return groups


def draw_case(rng, number):
    request = {"estimator": "egpo" if number % 4 == 3 else "grpo", "rewards": "turns", "groups": []}
    request["discount"] = float(rng.choice([0.0, 0.5, 0.9, 0.95, 1.0]))
    if number % 5 == 4:
        request["normalize_std"] = False
    paths = []
    for group in range(rng.integers(1, 4)):
        samples = []
        for _ in range(rng.choice([1, 2, 3, 4])):
            session = f"s{len(paths)}"
            steps = [draw_step(rng, at == 0, *TOKENS["default"]) for at in range(rng.integers(1, 6))]
            for step in steps:
                step["reward"] = float(rng.integers(-8, 9)) / 8 if rng.random() < 0.6 else None
            bare = all(step["reward"] is None for step in steps)
            reward = float(rng.integers(-2, 3)) / 2 if bare or rng.random() < 0.5 else None
            paths.append({"session": session, "reward": reward, "steps": steps})
            samples.append({"session": session})
        request["groups"].append({"id": int(group), "samples": samples})
    return {"request": request, "paths": paths, "answer": answer(request, paths)}


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
