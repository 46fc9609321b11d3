#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Scores of a real SGLang through tokentap, compared with torch.

check.py --data URL --control URL --direct URL --student FOLDER --teacher FOLDER --tokentap BINARY

Records a conversation and a long turn, then scores them by the same weights and, after an update, by those of the teacher. The logprobs of
the sampled tokens, of the teacher's likeliest tokens and of the student's are compared with a forward pass (float32 logits, softmax in
float64).
"""
import argparse
import base64
import json
import subprocess
import sys
import time
import urllib.error
import urllib.request

import numpy as np
import torch
import transformers

torch.set_num_threads(1)
K = 20
# float32 logits of two implementations, for logprobs of down to -60 nats
SLACK = 5e-4
failures = []


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read().decode().splitlines()[0])
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.code} {error.read().decode()}") from error


def need(holds, what):
    print("ok  " if holds else "FAIL", what)
    if not holds:
        failures.append(what)


def logprobs(model, ids):
    """Logprobs of all tokens at each position of `ids` after the first."""
    with torch.no_grad():
        return torch.log_softmax(model(torch.tensor([ids])).logits[0, :-1].double(), -1).numpy()


def columns(row):
    """The columns of a row: the positions and the values of each."""
    found = {}
    for column in row["columns"]:
        positions = [at for tokens in column["tokens"] for at in range(tokens["start"], tokens["end"])]
        kind = {"u32": "<u4", "f32": "<f4"}[column["type"]]
        values = np.frombuffer(base64.b64decode(column["data"]), kind)
        found[column["name"]] = (positions, values.reshape([len(positions), *column["shape"]]))
    return found


def check(row, model, about):
    truth = logprobs(model, row["token_ids"])
    found = columns(row)
    positions, own = found["teacher_logprobs"]
    need(positions == [at for at, mask in enumerate(row["loss_mask"]) if mask], f"{about}: the sampled tokens have scores")
    at = np.array(positions) - 1
    error = abs(own - truth[at, np.array(row["token_ids"])[positions]])
    need(error.max() < SLACK, f"{about}: {len(positions)} sampled tokens, at most {error.max():.1e} nats off")
    ids, top = found["teacher_top_ids"][1], found["teacher_top_logprobs"][1]
    error = abs(top - np.take_along_axis(truth[at], ids.astype(int), 1))
    need(ids.shape == (len(at), K) and error.max() < SLACK, f"{about}: {ids.size} likeliest tokens, at most {error.max():.1e} nats off")
    best = -np.sort(-truth[at], 1)[:, :K]
    need(abs(top - best).max() < SLACK, f"{about}: no other token is likelier")
    student, of_student = found["top_ids"][1], found["teacher_logprobs_of_top_ids"][1]
    error = abs(of_student - np.take_along_axis(truth[at], student.astype(int), 1))
    need(
        of_student.shape == student.shape and error.max() < SLACK,
        f"{about}: {student.size} likeliest tokens of the student, at most {error.max():.1e} nats off",
    )
    return found


def main():
    parser = argparse.ArgumentParser()
    for name in ["data", "control", "direct", "student", "teacher", "tokentap"]:
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()

    def generate(session, ids, tokens):
        params = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
        reply = call(f"{args.data}/sessions/{session}/generate", {"input_ids": ids, "sampling_params": params})
        return ids + reply["output_ids"]

    def score(session, teacher, **more):
        begun = time.time()
        request = {"teacher": teacher, "sessions": [session], "top_logprobs": K, "logprobs_of_top_ids": True, **more}
        row = call(f"{args.control}/v1/teacher-scores", request)["rows"][0]
        return row, time.time() - begun

    def export(session, teacher):
        return call(f"{args.control}/v1/samples", {"sessions": [session], "format": "jsonl", "scores": teacher})

    ids = [151644, 872, 198, 785, 12943, 374, 389]
    for _ in range(3):
        ids = generate("talk", ids, 24) + [198, 151644, 872, 198]
    generate("long", [785, 12943], 600)
    student = transformers.AutoModelForCausalLM.from_pretrained(args.student, dtype=torch.float32).eval()
    for session in ["talk", "long"]:
        row, seconds = score(session, "self")
        need(row["without_top_ids"] == 0 and row["incomparable"] == 0, f"{session}: every turn has the student's likeliest tokens")
        need(row["mismatch"]["max"] < SLACK, f"{session}: the mismatch of equal weights is at most {row['mismatch']['max']:.1e}")
        print(f"     {session}: {row['scored']} tokens in {seconds:.1f} s")
        found = check(export(session, "self"), student, f"{session}, same weights")
        error = abs(found["top_logprobs"][1] - found["teacher_logprobs_of_top_ids"][1]).max()
        need(error < SLACK, f"{session}: decode and prefill agree on the student's likeliest tokens, {error:.1e} nats")
    # the weights of a teacher, under the URL of the engine
    call(f"{args.direct}/update_weights_from_disk", {"model_path": args.teacher, "flush_cache": True})
    teacher = transformers.AutoModelForCausalLM.from_pretrained(args.teacher, dtype=torch.float32).eval()
    command = [args.tokentap, "score", "--control", args.control, "--teacher", args.direct, "--top-logprobs", str(K), "--logprobs-of-top-ids"]
    done = subprocess.run(command, capture_output=True, text=True)
    need(done.returncode == 0, f"tokentap score --teacher URL: {done.stderr.strip()}")
    for session in ["talk", "long"]:
        check(export(session, args.direct), teacher, f"{session}, the teacher's weights")
    sys.exit(len(failures) > 0)


main()
