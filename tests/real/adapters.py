#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""adapters.py --direct URL --via URL --control URL --adapter DIR --adapter DIR --adapter DIR

Two LoRA adapters, `a` and `b`, and a third one that replaces `a`, on a real SGLang that has loaded the first two. Each turn must have the
logprobs that the engine itself gives for this adapter, and the spans must name the adapter and the epoch of its weights. Prints a line
for each check; exit status 1 if one failed."""
import argparse
import secrets
import sys
from concurrent.futures import ThreadPoolExecutor

from wire import Stream, call, generate

args = argparse.ArgumentParser()
args.add_argument("--direct", required=True)
args.add_argument("--via", required=True)
args.add_argument("--control", required=True)
args.add_argument("--adapter", action="append", required=True)
args = args.parse_args()
RUN = secrets.token_hex(4)
failed = []


def check(name, got, want):
    same = got == want
    failed.extend([] if same else [name])
    print("ok   " if same else "FAIL ", "adapters", name, *([] if same else [f"\n      {got}\n      instead of {want}"]), flush=True)


def body(ids, adapter, tokens=6):
    sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
    return {"input_ids": ids, "lora_path": adapter, "return_logprob": True, "sampling_params": sampling}


def sampled(reply):
    return [(row[1], round(row[0], 4)) for row in reply["meta_info"]["output_token_logprobs"]]


def row(session):
    paths = call(args.control, "GET", f"/v1/sessions/{session}/trajectories").json()["trajectories"]
    return paths[-1]


def policies(path):
    return [(span.get("adapter"), span.get("adapter_epoch"), span.get("adapter_until"), span["epoch"]) for span in path["policy"]]


def control(route, fields):
    return call(args.control, "POST", route, fields).status


base = call(args.control, "GET", "/v1/policy").json()["epoch"]
PROMPT = list(range(5, 25))
own = {name: sampled(generate(args.direct, body(PROMPT, name)).json()) for name in (None, "a", "b")}
check("the adapters have different distributions", len({str(own[name]) for name in own}), 3)
for name in own:
    session = f"{RUN}-{name}"
    reply = generate(args.via, body(PROMPT, name), path=f"/sessions/{session}/generate").json()
    check(f"a reply of {name} is the engine's", sampled(reply), own[name])
    path = row(session)
    logprobs = [round(value, 4) for value in path["logprobs"][len(PROMPT) :]]
    check(f"the logprobs of {name} are recorded", logprobs, [value for _, value in own[name]])
    check(f"the spans name {name}", policies(path), [(name, None if name is None else 0, None, base)])

batch = body([PROMPT, PROMPT, PROMPT], ["a", None, "b"])
batch["sampling_params"] = [batch["sampling_params"]] * 3
replies = generate(args.via, batch, path=f"/sessions/{RUN}-batch/generate").json()
check("each item of a batch has its adapter", [sampled(reply) for reply in replies], [own["a"], own[None], own["b"]])
chat = {"model": "tiny:b", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
check("a chat names its adapter in `model`", call(args.via, "POST", f"/sessions/{RUN}-chat/v1/chat/completions", chat).status, 200)
check("its span names it", policies(row(f"{RUN}-chat")), [("b", 0, None, base)])

check("loading a loaded name is refused", control("/load_lora_adapter", {"lora_name": "a", "lora_path": args.adapter[2]}), 400)
running = Stream(args.via, body(PROMPT, "a", 40) | {"stream": True}, path=f"/sessions/{RUN}-running/generate")
running.next()
with ThreadPoolExecutor() as pool:
    unloaded = pool.submit(control, "/unload_lora_adapter", {"lora_name": "a"})
    while running.next() is not None:
        pass
    check("`a` is unloaded", unloaded.result(), 200)
check("an unload waits for running requests", policies(row(f"{RUN}-running")), [("a", 0, None, base)])
check("`a` is replaced", control("/load_lora_adapter", {"lora_name": "a", "lora_path": args.adapter[2]}), 200)
replaced = generate(args.via, body(PROMPT, "a"), path=f"/sessions/{RUN}-replaced/generate").json()
check("it samples with the new weights", sampled(replaced) not in own.values(), True)
check("its epoch is another", policies(row(f"{RUN}-replaced")), [("a", 2, None, base)])
path = PROMPT
for name in ("a", "b", None):
    reply = generate(args.via, body(path, name), path=f"/sessions/{RUN}-mixed/generate").json()
    path = path + reply["output_ids"] + [7]
mixed = row(f"{RUN}-mixed")
check("three adapters of one session have three policies", policies(mixed), [("a", 2, None, base), ("b", 0, None, base), (None, None, None, base)])
check("their row is flagged", mixed["flags"], ["crosses_versions", "mixed_adapters", "extends_length"])
check("the base weights have the same epoch", call(args.control, "GET", "/v1/policy").json()["epoch"], base)
sys.exit(bool(failed))
