#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Routed experts of a real SGLang through tokentap, every row compared with torch.

check.py --data URL --control URL --direct URL --model FOLDER --other FOLDER

Multi-turn paths with the prefix cache, n = 2, batches, streams, an abort, chats, and new weights between two turns, in a turn that is
aborted and resumed, and in one that is retracted.
"""
import argparse
import base64
import json
import sys
import threading
import time
import urllib.error
import urllib.request

import numpy as np
from routing import Routing

# float32 of the engine against float64: where two experts are closer than this, either may be chosen
TIE = 1e-6
failures = []
counts = {"rows": 0, "ties": 0}


def call(url, body=None):
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=300) as reply:
            return reply.read().decode()
    except urllib.error.HTTPError as error:
        raise SystemExit(f"{url}: {error.code} {error.read().decode()}") from error


def need(holds, what):
    if not holds:
        failures.append(what)
        print("FAIL", what)


def compare(found, truth, what):
    """Rows of experts, as sets in each layer."""
    chosen, margins = truth
    counts["rows"] += len(found)
    for at, row in enumerate(found):
        for layer, experts in enumerate(row):
            if set(experts.tolist()) != set(chosen[at, layer].tolist()):
                tie = margins[at, layer] < TIE
                counts["ties"] += tie
                # a tie changes what follows, so that a long sequence after it cannot be compared
                need(tie, f"{what}: token {at}, layer {layer}: {experts.tolist()}, torch {chosen[at, layer].tolist()}, margin {margins[at, layer]:.2e}")


class Tap:
    def __init__(self, args):
        self.args = args

    def generate(self, session, ids, **more):
        params = {"max_new_tokens": 12, "temperature": 1.0, "ignore_eos": True, **more.pop("sampling_params", {})}
        body = {"input_ids": ids, "sampling_params": params, **more}
        text = call(f"{self.args.data}/sessions/{session}/generate", body)
        need(("routed_experts" in text) == ("return_routed_experts" in more), f"{session}: only a client that asks gets experts")
        return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if more.get("stream") else json.loads(text)

    def rows(self, session):
        return json.loads(call(f"{self.args.control}/v1/sessions/{session}/trajectories"))["trajectories"]

    def samples(self, session, kind):
        return call(f"{self.args.control}/v1/samples", {"sessions": [session], "format": kind})


def experts(row):
    """The experts by token; the last token has none."""
    [column] = row.get("columns") or [None]
    need(column is not None, f"{row['session']}: no column: {row['turns'][-1].get('missing_columns')}")
    if column is None:
        return np.zeros((0, 0, 0))
    last = len(row["token_ids"]) - 1
    need(column["tokens"] == [{"start": 0, "end": last}], f"{row['session']}: {column['tokens']} of {last + 1} tokens")
    need(column["type"] == "u8", column["type"])
    return np.frombuffer(base64.b64decode(column["data"]), np.uint8).reshape(-1, *column["shape"]).astype(np.int32)


def check_rows(tap, session, routing, count=1):
    rows = tap.rows(session)
    need(len(rows) == count, f"{session}: {len(rows)} rows, expected {count}")
    for row in rows:
        compare(experts(row), routing.experts(row["token_ids"]), session)
    print(f"{session}: {len(rows)} rows of {[len(row['token_ids']) for row in rows]} tokens, {len(rows[0]['turns'])} turns")
    return rows


def paths(tap, routing):
    for stream in (False, True):
        session, ids = f"path-{stream}".lower(), [10, 2000, 151, 77, 3001]
        for turn in range(4):
            tap.generate(session, ids, stream=stream)
            ids = check_rows(tap, session, routing)[0]["token_ids"] + [500 + turn, 9, 44]
        cached = [turn["cached_tokens"] for turn in tap.rows(session)[0]["turns"]]
        need(any(cached), f"{session}: the prefix cache was not used: {cached}")
        pieces = json.loads(tap.samples(session, "strands"))["samples"][0]["routed_experts"]
        joined = np.concatenate([np.frombuffer(base64.b64decode(piece), np.int32) for piece in pieces])
        whole = experts(tap.rows(session)[0])
        need(np.array_equal(joined.reshape(whole.shape), whole), f"{session}: strands' pieces")


def samples(tap, routing):
    tap.generate("samples", [[5, 6, 7, 8], [900, 901]], sampling_params={"n": 2})
    check_rows(tap, "samples", routing, 4)
    tap.generate("streams", [15, 16, 17, 18], sampling_params={"n": 2}, stream=True)
    check_rows(tap, "streams", routing, 2)


def aborted(tap, routing):
    prompt = [1000, 1001, 1002, 1003]
    # on the data port it is the client's own, which is not resumed
    abort = threading.Timer(1.0, lambda: call(f"{tap.args.data}/abort_request", {"rid": "cut"}))
    abort.start()
    events = tap.generate("abort", prompt, stream=True, rid="cut", sampling_params={"max_new_tokens": 1500})
    abort.join()
    last = events[-1]["meta_info"]
    need(last["finish_reason"]["type"] == "abort", f"abort: {last['finish_reason']}")
    [refused] = json.loads(call(f"{tap.args.control}/v1/sessions/abort/trajectories"))["refused"]
    need(refused["reason"] == "aborted", f"abort: {refused}")
    # each event has all tokens, or the new ones
    lists = [event["output_ids"] for event in events]
    sampled = lists[-1] if len(lists[-1]) == last["completion_tokens"] else [id for new in lists for id in new]
    tap.generate("abort", prompt + sampled + [77, 78])
    check_rows(tap, "abort", routing)


def chats(tap, routing):
    messages = [{"role": "user", "content": "Say something."}]
    for stream in (False, True):
        body = {"model": "tiny", "messages": messages, "max_tokens": 10, "return_routed_experts": True, "stream": stream, "ignore_eos": True}
        direct, through = (call(f"{base}/v1/chat/completions", body) for base in (tap.args.direct, f"{tap.args.data}/sessions/chat-{stream}".lower()))
        found = []
        for text in (direct, through):
            objects = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")] if stream else [json.loads(text)]
            with_experts = [item for item in objects if "routed_experts" in (item.get("sglext") or {})]
            need(len(with_experts) == 1, f"chat, stream {stream}: {len(with_experts)} objects with routed experts")
            need(not stream or with_experts[0]["choices"] == [], "the chunk with sglext has no choices")
            found.append([sorted(with_experts[0]), len(with_experts[0]["sglext"]["routed_experts"])])
        need(found[0] == found[1], f"chat, stream {stream}: SGLang {found[0]}, tokentap {found[1]}")
        check_rows(tap, f"chat-{stream}".lower(), routing)
    plain = call(f"{tap.args.data}/sessions/plain/v1/chat/completions", {"model": "tiny", "messages": messages, "max_tokens": 10})
    need("routed_experts" not in plain, "a chat that does not ask for experts gets none")
    check_rows(tap, "plain", routing)


def interrupted(tap, mode, session, model, ids):
    """A stream during which a trainer pauses the engine in this mode, changes the weights to `model`, and continues. Returns its row."""
    control = tap.args.control

    def trainer():
        call(f"{control}/pause_generation", {"mode": mode})
        call(f"{control}/update_weights_from_disk", {"model_path": model, "weight_version": session, "flush_cache": True})
        call(f"{control}/continue_generation", {})

    pause = threading.Timer(1.0, trainer)
    pause.start()
    events = tap.generate(session, ids, stream=True, sampling_params={"max_new_tokens": 1500})
    pause.join()
    finish = events[-1]["meta_info"]["finish_reason"]
    need(finish == {"type": "length", "length": 1500}, f"{session}: {finish}")
    [row] = tap.rows(session)
    need("crosses_versions" in row["flags"], f"{session}: {row['flags']}")
    return row


def resumed(tap, old, new, model):
    row = interrupted(tap, "abort", "resumed", model, [80, 81, 82, 83])
    found, spans = experts(row), row["policy"]
    need(len(row["turns"]) == 1 and len(spans) == 2, f"resumed: {len(row['turns'])} turns, policy {spans}")
    # the last token before the abort is processed by the continuation
    known = spans[1]["start"] - 1
    before, after = old.experts(row["token_ids"]), new.experts(row["token_ids"])
    compare(found[:known], (before[0][:known], before[1][:known]), "resumed, earlier weights")
    compare(found[known:], (after[0][known:], after[1][known:]), "resumed, later weights")
    need("column_uncertain" not in row["flags"], f"resumed: {row['flags']}")
    print(f"resumed: {known} tokens before the abort, {len(found) - known} after it")


def retracted(tap, model):
    row = interrupted(tap, "retract", "retracted", model, [90, 91, 92, 93])
    need("column_uncertain" in row["flags"], f"retracted: {row['flags']}")


def updated(tap, routing, other):
    ids = [70, 71, 72, 73, 74]
    tap.generate("update", ids)
    before = check_rows(tap, "update", routing)[0]["token_ids"]
    call(f"{tap.args.control}/update_weights_from_disk", {"model_path": tap.args.other, "flush_cache": True})
    tap.generate("update", before + [5, 6])
    [row] = tap.rows("update")
    found, known = experts(row), len(before) - 1
    old, new = routing.experts(row["token_ids"]), other.experts(row["token_ids"])
    compare(found[:known], (old[0][:known], old[1][:known]), "update, earlier weights")
    compare(found[known:], (new[0][known:], new[1][known:]), "update, later weights")
    need(not np.array_equal(old[0], new[0]), "the weights route alike")
    need("crosses_versions" in row["flags"], f"update: {row['flags']}")


def main():
    parser = argparse.ArgumentParser()
    for name in ("data", "control", "direct", "model", "other"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    tap, routing, other = Tap(args), Routing(args.model), Routing(args.other)
    start = time.time()
    paths(tap, routing)
    samples(tap, routing)
    aborted(tap, routing)
    chats(tap, routing)
    updated(tap, routing, other)
    resumed(tap, other, routing, args.model)
    retracted(tap, args.other)
    metrics = call(f"{args.control}/metrics")
    need("tokentap_missing_columns_total{" not in metrics, "a turn lacks a column")
    print(f"{counts['rows']} rows compared with torch, {counts['ties']} layers within {TIE} of a tie, {time.time() - start:.0f} s")
    sys.exit(bool(failures))


main()
