#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""accuracy.py --via URL --control URL --model DIR [--tokens N] [--answer TEXT]   measures the accuracy of the entropies of a running server

Samples about N tokens for own prompts at three temperatures through tokentap with top-k forced, and runs the same weights in float32 over the
same tokens (softmax in float64, whole vocabulary). Prints by temperature, for `estimate` and for `renormalized` top-k: mean absolute error,
bias, mean absolute error of sequence means, Spearman's correlation, and the Jaccard index of the 20 % most uncertain tokens.
A check fails if a true entropy is outside its interval, an estimate is missing, or the mean absolute error exceeds 1 nat. With --answer the
model must answer a simple question with a text that contains TEXT, so that wrongly converted weights do not pass."""
from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
import os
import sys
import time
from typing import Any

import numpy as np
import torch
import transformers
from scipy.stats import spearmanr

from wire import call, generate

TEMPERATURES = (0.7, 1.0, 1.3)
K = 20
SLACK = 2e-4  # float32 logits of two implementations, and the float32 logprobs on the wire
MOST_ERROR = 1.0  # nats
QUESTION = "What is the capital of France?"
PROMPTS = [
    "Explain how a tide mill grinds grain.",
    "Write a Python function that merges two sorted lists.",
    "A ferry carries 36 cars on each trip. How many trips does it need for 250 cars? Think step by step.",
    "Write a poem about the first snow.",
    "Return a JSON object with the name, the height and the country of a mountain.",
    "Summarize in one sentence: The library opens on Sundays from March on, because many readers work on weekdays.",
    "What should I pack for three days in the rain?",
    "Write a SQL query for the five newest invoices of each customer.",
    "Why do leaves change their colour in autumn?",
    "Tell a story that begins with a lost key.",
    "What is 48 divided by 6, plus 7? Show the steps.",
    "List four uses of vinegar in the household.",
    "Translate to Spanish: The museum is closed on Mondays.",
    "How does a compass work?",
    "Write a Rust function that counts the words of a text.",
    "Give me the pros and cons of a night train.",
    "Describe the smell of an old bookshop.",
    "What is the difference between weather and climate?",
    "Write a haiku about a lighthouse.",
    "Write a regular expression that matches a time such as 23:59.",
    "Who discovered penicillin, and how?",
    "Write a short dialogue between a fox and a crow.",
    "Make this more polite: Send me the file now.",
    "A rope of 18 m is cut into pieces of 75 cm. How many pieces are there?",
]


@dataclasses.dataclass
class Sequence:
    """A reply with its numbers for each token."""

    temperature: float
    prompt: list[int]
    output: list[int]
    estimate: list[float | None]
    lower: list[float | None]
    upper: list[float | None]
    renormalized: list[float] = dataclasses.field(default_factory=list)
    truth: list[float] = dataclasses.field(default_factory=list)


class Sampler:
    def __init__(self, via: str, control: str, vocab_size: int) -> None:
        self.via, self.control, self.vocab_size = via, control, vocab_size

    def sample(self, prompt: list[int], temperature: float, length: int) -> Sequence:
        sampling = {"temperature": temperature, "max_new_tokens": length}
        reply = generate(self.via, {
            "input_ids": prompt, "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": K,
            "return_entropy": True, "entropy_options": {"bounds": True},
        }, timeout=900)
        if reply.status != 200:
            raise RuntimeError(f"status {reply.status}: {reply.body[:300]!r}")
        item = reply.json()
        meta = item["meta_info"]
        estimate, lower, upper = (meta[f"output_token_entropy{part}"] for part in ("", "_lower", "_upper"))
        sequence = Sequence(temperature, prompt, item["output_ids"], estimate, lower, upper)
        sequence.renormalized = self.renormalized(meta)
        return sequence

    def renormalized(self, meta: dict[str, Any]) -> list[float]:
        body = {
            "top_logprobs": [[logprob for logprob, *_ in row] for row in meta["output_top_logprobs"]],
            "logprobs": [logprob for logprob, *_ in meta["output_token_logprobs"]],
            "vocab_size": self.vocab_size,
        }
        reply = call(self.control, "POST", "/v1/entropy", body)
        if reply.status != 200:
            raise RuntimeError(f"/v1/entropy: status {reply.status}: {reply.body[:300]!r}")
        return reply.json()["renormalized"]


def true_entropies(model: Any, sequence: Sequence) -> list[float]:
    with torch.no_grad():
        logits = model(torch.tensor([sequence.prompt + sequence.output[:-1]]), logits_to_keep=len(sequence.output)).logits[0].double()
    logprobs = torch.log_softmax(logits / sequence.temperature, -1)
    return (-(logprobs.exp() * logprobs).sum(-1)).tolist()


def most_uncertain(values: np.ndarray) -> set[int]:
    return set(np.argsort(-values)[: max(1, round(0.2 * len(values)))].tolist())


def accuracy(found: np.ndarray, truth: np.ndarray, lengths: list[int]) -> str:
    """The columns of a row."""
    error = found - truth
    means = [abs(part.mean()) for part in np.split(error, np.cumsum(lengths)[:-1])]
    both = most_uncertain(found), most_uncertain(truth)
    jaccard = len(both[0] & both[1]) / len(both[0] | both[1])
    return (f"{abs(error).mean():8.4f} {error.mean():+8.4f} {np.mean(means):9.4f} "
            f"{spearmanr(found, truth).statistic:9.4f} {jaccard:8.3f}")


def report(sequences: list[Sequence], temperature: float) -> bool:
    """Prints the rows of a temperature and its checks. Returns whether the checks passed."""
    chosen = [sequence for sequence in sequences if sequence.temperature == temperature]

    def column(name: str) -> np.ndarray:
        return np.array([value for sequence in chosen for value in getattr(sequence, name)], dtype=float)  # a missing value is NaN

    lengths = [len(sequence.output) for sequence in chosen]
    estimate, lower, upper, renormalized, truth = map(column, ("estimate", "lower", "upper", "renormalized", "truth"))
    outside = np.maximum(lower - truth, truth - upper)
    # a comparison with NaN is false
    missed, error = int((~(outside <= SLACK)).sum()), abs(estimate - truth).mean()
    for name, values in (("estimate", estimate), ("renormalized", renormalized)):
        print(f"      T = {temperature} {name:13} {len(truth):6} tokens, mean H {truth.mean():.3f}: {accuracy(values, truth, lengths)}")
    for passed, text in [
        (missed == 0, f"truth is inside the interval: {missed} outside, by at most {max(0, outside.max()):.1e} nat, "
                      f"mean width {(upper - lower).mean():.4f}"),
        (error <= MOST_ERROR, f"mean absolute error {error:.4f} nat is at most {MOST_ERROR}"),
    ]:
        print(f"{'ok' if passed else 'FAIL':5} accuracy T = {temperature}: {text}")
    return missed == 0 and error <= MOST_ERROR


def answers(via: str, expected: str) -> bool:
    body = {"messages": [{"role": "user", "content": QUESTION}], "temperature": 0, "max_tokens": 24}
    text = generate(via, body, path="/v1/chat/completions", timeout=300).json()["choices"][0]["message"]["content"]
    print(f"{'ok' if expected in text else 'FAIL':5} accuracy {QUESTION} {text!r}")
    return expected in text


def main() -> bool:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--via", required=True)
    arguments.add_argument("--control", required=True)
    arguments.add_argument("--model", required=True)
    arguments.add_argument("--tokens", type=int, default=1500)
    arguments.add_argument("--answer")
    arguments = arguments.parse_args()
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    tokenizer = transformers.AutoTokenizer.from_pretrained(arguments.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32).eval()
    sampler = Sampler(arguments.via, arguments.control, model.config.vocab_size)
    passed = arguments.answer is None or answers(arguments.via, arguments.answer)

    chats = [tokenizer.apply_chat_template([{"role": "user", "content": text}], tokenize=False, add_generation_prompt=True) for text in PROMPTS]
    prompts = [tokenizer.encode(chat, add_special_tokens=False) for chat in chats]
    begun = time.monotonic()
    sequences: list[Sequence] = []
    jobs = [(prompt, temperature) for prompt in prompts for temperature in TEMPERATURES]
    # replies end early, so prompts are repeated until there are enough tokens
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        while (missing := arguments.tokens - sum(len(sequence.output) for sequence in sequences)) > 0:
            length = min(96, max(16, math.ceil(missing / len(jobs))))
            count = math.ceil(missing / length / len(TEMPERATURES)) * len(TEMPERATURES)  # as many of each temperature
            found = pool.map(lambda job: sampler.sample(*job, length), jobs[:count])
            sequences += [sequence for sequence in found if sequence.output]
    sampled = time.monotonic()
    for sequence in sequences:
        sequence.truth = true_entropies(model, sequence)
    print(f"      {K} of {model.config.vocab_size} logprobs; sampled in {sampled - begun:.0f} s, compared in {time.monotonic() - sampled:.0f} s")
    print(f"{'':57}{'error':>8} {'bias':>8} {'sequences':>9} {'Spearman':>9} {'Jaccard':>8}")
    return all([report(sequences, temperature) for temperature in TEMPERATURES]) and passed


if __name__ == "__main__":
    sys.exit(not main())
