# SPDX-License-Identifier: Apache-2.0
"""tokentap with its demo engine, and the true distributions of an engine."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

LINES = {"base": r"(http://[0-9.:]+)/generate", "control": r"(http://[0-9.:]+)/v1", "engine": r'upstream="([^"]+)"'}


@dataclass(frozen=True)
class Addresses:
    """The data port of tokentap, its control port, and the engine."""

    base: str
    control: str
    engine: str


@contextmanager
def demo(binary: str, *options: str) -> Iterator[Addresses]:
    """`tokentap demo` on free ports."""
    command = [binary, "demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", *options]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        text = ""
        found: dict[str, re.Match[str] | None] = {}
        assert process.stdout is not None
        # the log line with the engine may follow what the command prints
        for line in process.stdout:
            text += line
            found = {name: re.search(pattern, text) for name, pattern in LINES.items()}
            if all(found.values()):
                break
        if not found or not all(found.values()):
            raise RuntimeError(f"the demo did not start:\n{text}")
        yield Addresses(**{name: match.group(1) for name, match in found.items() if match})
    finally:
        process.terminate()
        process.wait(timeout=30)


def whole_vocabulary(engine: str, vocabulary: int, temperature: float) -> Any:
    """A Truth: requests the logprobs of the whole vocabulary at each position directly from the engine.

    The engine returns them at temperature 1. For another temperature they are divided by it and renormalised.
    """

    def truth(ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        body = {"input_ids": list(ids), "return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": vocabulary}
        body["sampling_params"] = {"max_new_tokens": 1}
        head = {"content-type": "application/json"}
        request = urllib.request.Request(f"{engine}/generate", json.dumps(body).encode(), head)
        with urllib.request.urlopen(request, timeout=60) as reply:
            places = json.load(reply)["meta_info"]["input_top_logprobs"]
        # no token precedes the first one
        entropies = [np.nan]
        for place in places[1:]:
            logits = np.array([entry[0] for entry in place], np.float64) / temperature
            logprobs = logits - np.log(np.exp(logits).sum())
            entropies.append(float(-(np.exp(logprobs) * logprobs).sum()))
        return np.array(entropies)

    return truth


def weights(folder: str) -> Any:
    """A Truth for temperature 1: a model of transformers over the same weights, in float64."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)

    def truth(ids: Sequence[int]) -> np.ndarray[Any, np.dtype[np.float64]]:
        with torch.no_grad():
            logprobs = model(torch.tensor([list(ids)])).logits[0].log_softmax(-1)
        entropies = -(logprobs.exp() * logprobs).sum(-1).numpy()
        return np.concatenate([[np.nan], entropies[:-1]])

    return truth
