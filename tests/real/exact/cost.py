#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""cost.py --base URL [--without] [--rounds N]   measures tokens per second and bytes per token with 8 concurrent requests of 64 tokens.
The kinds of requests are interleaved on one server. --without: the server has no plugin, so only the other kinds are measured."""
import argparse
import concurrent.futures
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from wire import generate  # noqa: E402

arguments = argparse.ArgumentParser()
arguments.add_argument("--base", required=True)
arguments.add_argument("--without", action="store_true")
arguments.add_argument("--rounds", type=int, default=8)
args = arguments.parse_args()

PROMPTS = ["alpha beta gamma", "one two three", "def f(x):", "the cat sat", "import os", "once upon a", "hello world", "x = 1 +"]
SAMPLING = {"temperature": 0.8, "max_new_tokens": 64, "ignore_eos": True}
ASKED = {"sampling_params": SAMPLING | {"custom_params": {"tokentap_entropy": True}}}
FLAT = {"return_flat_raw_output_top_logprobs": True, "return_flat_raw_top_logprobs_b64": True}
TOP = {"return_logprob": True, "top_logprobs_num": 20}
KINDS = {"nothing": {}, "chosen logprobs": {"return_logprob": True}, "top-20, nested": TOP, "top-20, flat": TOP | FLAT}
if not args.without:
    KINDS |= {"plugin": ASKED, "plugin, chosen logprobs": ASKED | {"return_logprob": True}}


def run(kind):
    bodies = [{"text": prompt, "sampling_params": SAMPLING} | KINDS[kind] for prompt in PROMPTS]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        begun = time.perf_counter()
        replies = list(pool.map(lambda body: generate(args.base, body), bodies))
        took = time.perf_counter() - begun
    tokens = sum(len(reply.json()["output_ids"]) for reply in replies)
    assert tokens == 64 * len(bodies), tokens
    return tokens / took, sum(len(reply.body) for reply in replies) / tokens


rates, sizes = {kind: [] for kind in KINDS}, {}
for kind in KINDS:
    run(kind)
for turn in range(args.rounds):
    order = list(KINDS)
    for kind in order[turn % len(order):] + order[:turn % len(order)]:
        rate, sizes[kind] = run(kind)
        rates[kind].append(rate)
base = statistics.median(rates["nothing"])
where = "a server without the plugin" if args.without else "a server with the plugin"
print(f"ok    cost: {where}, {len(PROMPTS)} at a time, medians of {args.rounds} rounds")
for kind, found in rates.items():
    median = statistics.median(found)
    print(f"ok    cost: {kind:24} {median:6.1f} tokens/s ({min(found):.0f} to {max(found):.0f}), {median / base - 1:+6.1%}, "
          f"{8 / median * 1e3:5.1f} ms a step, {sizes[kind]:7.1f} bytes a token")
