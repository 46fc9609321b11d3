#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""truth.py MODEL_DIR REPLIES_DIR   checks the entropies of saved replies against the weights

Runs the weights that the server served with transformers in float32 over prompt + output ids, softmax in float64
over the whole vocabulary, at the temperature the reply names, and checks at every position
    output_token_entropy_lower - 2e-4 <= H <= output_token_entropy_upper + 2e-4
Prints one line per reply file (compare.py --save writes them); exit status 1 if an interval does not contain the true entropy."""
import json
import pathlib
import sys

import torch
import transformers

torch.set_num_threads(1)
SLACK = 2e-4  # float32 logits of two implementations, and the float32 logprobs on the wire
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32).eval()


def entropies(prompt, output, temperature, bias):
    with torch.no_grad():
        logits = model(torch.tensor([prompt + output[:-1]])).logits[0, len(prompt) - 1:].double()
    for token, value in bias.items():
        logits[:, int(token)] += value
    logp = torch.log_softmax(logits / temperature, -1)
    return (-(logp.exp() * logp).nan_to_num(0).sum(-1)).tolist()


def check(request, items):
    """Returns (checked positions, positions outside their interval, sum of absolute errors, sum of interval widths)."""
    prompts = request["input_ids"]
    prompts = prompts if isinstance(prompts[0], list) else [prompts]
    bias = request["sampling_params"].get("logit_bias", {})
    count = missed = 0
    error = width = 0.0
    for i, item in enumerate(items):
        meta, output = item["meta_info"], item["output_ids"]
        if not output:
            continue
        prompt = prompts[i * len(prompts) // len(items)]  # n samples: prompt-major
        truth = entropies(prompt, output, meta["entropy_info"]["temperature"], bias)
        given = zip(truth, meta["output_token_entropy"], meta["output_token_entropy_lower"],
                    meta["output_token_entropy_upper"], strict=True)
        for position, (h, value, lower, upper) in enumerate(given):
            count += 1
            if None in (value, lower, upper):
                missed += 1
                print(f"    item {i} position {position}: no entropy")
                continue
            error += abs(value - h)
            width += upper - lower
            if not lower - SLACK <= h <= upper + SLACK:
                missed += 1
                print(f"    item {i} position {position}: {h:.6f} is not in [{lower:.6f}, {upper:.6f}]")
    return count, missed, error, width


failed = 0
for path in sorted(pathlib.Path(sys.argv[2]).glob("*.json")):
    saved = json.loads(path.read_text())
    count, missed, error, width = check(saved["request"], saved["items"])
    failed += missed > 0 or count == 0
    print(f"{'FAIL' if missed or not count else 'ok':5} truth    {path.stem:24} {count:4} tokens, {missed} outside, "
          f"mean |error| {error / max(count, 1):.4f}, mean width {width / max(count, 1):.4f} nats")
sys.exit(failed > 0)
