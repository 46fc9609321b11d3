#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""sessions.py --direct URL --via URL --control URL

One conversation through tokentap: a text, tools, a stream, two samples at once, an abort, a change of weights. The export must equal,
token by token, the engine's requests and replies. The expected rows are derived from the client's replies, and the ids of each prompt
are requested from the engine. Prints a line per check; exit status 1 if one failed."""
import argparse
import json
import secrets
import struct
import sys

import streams
from wire import Stream, call, generate

args = argparse.ArgumentParser()
args.add_argument("--direct", required=True)
args.add_argument("--via", required=True)
args.add_argument("--control", required=True)
args = args.parse_args()
NAME = f"real-{secrets.token_hex(4)}"
TEXT = "The quick brown fox jumps over"
failed = []


def check(name, differences):
    failed.extend([name] * bool(differences))
    print(f"{'FAIL' if differences else 'ok':5} session  {name}", *differences[:5], sep="\n        ", flush=True)


def differ(what, got, want):
    return [] if got == want else [f"{what}: {str(got)[:300]} instead of {str(want)[:300]}"]


def single(values):
    """Numbers rounded to float32, as the engine and the tensors have them."""
    return [v if v is None else struct.unpack("f", struct.pack("f", v))[0] for v in values]


def answer(reply):
    if reply.status != 200:
        raise SystemExit(f"status {reply.status}: {reply.body[:500]}")
    return reply.json()


class Turn:
    """A generation from the view of its client."""

    def __init__(self, number, parent, prompt, item):
        self.number, self.parent, self.prompt, self.meta = number, parent, prompt, item["meta_info"]
        rows = self.meta.get("output_token_logprobs")
        # under load 0.5.6 --stream-output merges events and drops ids from output_ids; the logprobs are complete
        self.output = [row[1] for row in rows] if rows else item["output_ids"]
        self.logprobs = [row[0] for row in rows or []]
        self.finish = self.meta["finish_reason"]["type"]
        self.trained = self.finish != "abort"

    def line(self):
        return (self.parent.line() if self.parent else []) + [self]

    def tokens(self):
        return [i for turn in self.line() for i in turn.prompt + turn.output]

    def whole_prompt(self):
        return (self.parent.tokens() if self.parent else []) + self.prompt


turns = []


def label(version):
    return call(args.control, "POST", "/update_weight_version", {"new_version": version, "abort_all_requests": False})


def go(after, new, text=None, stream=False, during=None, logprobs=True, **sampling):
    """Sends `new` after the turn `after`; returns the turns. `during` is called in the middle of a stream."""
    body = {"sampling_params": {"max_new_tokens": 12, "temperature": 0.8} | sampling}
    body |= {"return_logprob": True} if logprobs else {}
    body |= {"text": text} if text else {"input_ids": (after.tokens() if after else []) + new}
    path = f"/sessions/{NAME}/generate"
    if during:
        body |= {"stream": True, "rid": f"{NAME}-{len(turns)}"}
        connection, events = Stream(args.via, body, path), []
        while event := connection.next():
            events.append(event)
            if len(events) == 3:
                during(body["rid"])
        if "meta_info" not in events[-1]:
            raise SystemExit(f"the stream ended with {events[-1]}")
        items = [streams.fold(events)]
    elif stream:
        reply = generate(args.via, body | {"stream": True}, path=path)
        items = [streams.fold(events) for events in streams.by_index(reply.events())]
    else:
        reply = answer(generate(args.via, body, path=path))
        items = reply if isinstance(reply, list) else [reply]
    made = [Turn(len(turns) + at, after, new, item) for at, item in enumerate(items)]
    turns.extend(made)
    return made


def abort(rid):
    call(args.via, "POST", "/abort_request", {"rid": rid})


def labels(turn):
    """The version of each token; None if the engine does not report the spans (0.5.6)."""
    spans = turn.meta.get("weight_versions")
    if turn is mixed and not spans:
        return None
    spans = spans or [{"version": turn.meta["weight_version"], "start": 0, "end": len(turn.output)}]
    return [span["version"] for span in spans for _ in range(span["start"], span["end"])]


def echo(body):
    """The engine's ids of a prompt; None if it does not return them, as 0.5.6 does for text."""
    ask = {"sampling_params": {"max_new_tokens": 1, "temperature": 0}, "return_prompt_token_ids": True} | body
    ids = answer(generate(args.direct, ask)).get("prompt_token_ids")
    if ids is None and "text" in body:
        reply = call(args.direct, "POST", "/tokenize", {"model": "tiny", "prompt": body["text"]})
        ids = answer(reply)["tokens"]
    return ids


def leaves():
    continued = {ancestor.number for turn in turns if turn.trained for ancestor in turn.line()[:-1]}
    return [turn for turn in turns if turn.trained and turn.number not in continued]


def expected():
    """The expected rows: ids, mask, logprobs and entropies; the last two are None at untrained tokens."""
    rows, taken = [], set()
    for leaf in leaves():
        ids, mask, logprobs, entropies = [], [], [], []
        for turn in leaf.line():
            # a turn shared by several rows is trained in the first one
            trained = turn.trained and turn.number not in taken
            taken.add(turn.number)
            nothing = [None] * len(turn.output)
            ids += turn.prompt + turn.output
            mask += [0] * len(turn.prompt) + [int(trained)] * len(turn.output)
            logprobs += [None] * len(turn.prompt) + (turn.logprobs if trained else nothing)
            entropies += [None] * len(turn.prompt) + (turn.meta["output_token_entropy"] if trained else nothing)
        rows.append((leaf.number, ids, mask, single(logprobs), single(entropies)))
    return rows


def safetensors(content):
    """A file of tensors as lists of rows, and its metadata."""
    size = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8:8 + size]), content[8 + size:]
    meta, tensors = header.pop("__metadata__"), {}
    for name, about in header.items():
        start, end = about["data_offsets"]
        kind = {"I64": "q", "F32": "f"}[about["dtype"]]
        count, width = about["shape"]
        flat = struct.unpack(f"<{count * width}{kind}", data[start:end])
        tensors[name] = [list(flat[i * width:(i + 1) * width]) for i in range(count)]
    return meta, tensors


refused = []  # the refused rows of each export, by reason


def export(name):
    reply = call(args.control, "POST", "/v1/samples", {"sessions": [NAME], "format": name})
    if reply.status != 200:
        answer(reply)
    refused.append(json.loads(reply.headers["tokentap-refused"]))
    return reply.body


# --- the conversation ---

before = answer(call(args.direct, "GET", "/get_model_info")).get("weight_version", "default")
first_ids = echo({"text": TEXT})
(first,) = go(None, first_ids, text=TEXT)
(second,) = go(first, [151644, 872, 198, 16, 488], stream=True)
changed = label("step-1")
one, other = go(second, [9707, 11], n=2)
(last,) = go(one, [1879, 0], temperature=0, logprobs=False)  # only tokentap requests the logprobs
(cut,) = go(other, [13], during=abort, max_new_tokens=1500, ignore_eos=True)
(after_cut,) = go(cut, [220, 17])
(lost,) = go(None, [10, 11, 12], during=abort, max_new_tokens=1500, ignore_eos=True)
(mixed,) = go(last, [279], during=lambda _: label("step-2"), max_new_tokens=80, ignore_eos=True)
check("the conversation", differ("turns", [t.number for t in turns], list(range(9)))
      + differ("finishes", [t.finish for t in (cut, lost)], ["abort", "abort"])
      + differ("status of /update_weight_version", changed.status, 200)
      + differ("weight versions of the replies", [t.meta["weight_version"] for t in (first, last, mixed)], [before, "step-1", "step-2"]))

# --- the engine's own view ---

check("the text's ids", differ("prompt_tokens", first.meta["prompt_tokens"], len(first_ids)))
echoed = {turn.number: echo({"input_ids": turn.whole_prompt()}) for turn in turns[1:]}
known = {number: ids for number, ids in echoed.items() if ids is not None}
check(f"{len(known) + 1} of {len(turns)} prompts as the engine echoes them, all by their count",
      [d for turn in turns[1:] for d in differ(f"turn {turn.number}", known.get(turn.number, turn.whole_prompt()), turn.whole_prompt())
       + differ(f"turn {turn.number}: count", turn.meta["prompt_tokens"], len(turn.whole_prompt()))])
direct = answer(generate(args.direct, {"input_ids": last.whole_prompt(), "return_logprob": True,
                                       "sampling_params": {"max_new_tokens": 12, "temperature": 0}}))
last.logprobs = [row[0] for row in direct["meta_info"]["output_token_logprobs"]]
check("a greedy turn, directly", differ("ids", direct["output_ids"], last.output))

# --- what tokentap recorded ---

lines = [json.loads(line) for line in export("jsonl").splitlines()]
rows = expected()
check("rows", differ("leaves", [line["leaf"] for line in lines], [row[0] for row in rows])
      + differ("refused", refused[-1], {"aborted": 1}))
for line, (leaf, ids, mask, logprobs, entropies) in zip(lines, rows):
    name = f"leaf {leaf}: "
    check(name + f"{len(ids)} token ids", differ("token_ids", line["token_ids"], ids))
    check(name + f"{sum(mask)} trained", differ("loss_mask", line["loss_mask"], mask))
    got = [v if m else None for v, m in zip(single(line["logprobs"]), mask)]
    # the logprobs of the greedy turn are from another generation, whose float32 sums may round differently
    apart = [i for i, (a, b) in enumerate(zip(got, logprobs)) if a != b and (None in (a, b) or abs(a - b) > 1e-4)]
    exact = [i for i, (a, b) in enumerate(zip(got, logprobs)) if a == b and b is not None]
    check(name + f"logprobs, {len(exact)} to the last bit", [f"{got[i]} instead of {logprobs[i]} at {i}" for i in apart]
          + ([] if last in turns[leaf].line() or len(exact) == sum(mask) else ["not all equal the client's logprobs"]))
    got = [v if m else None for v, m in zip(single(line["entropy"]), mask)]
    check(name + "entropies", differ("entropy", got, entropies))
    found = [None] * len(ids)
    for span in line["policy"]:
        found[span["start"]:span["end"]] = [span["weight_version"]] * (span["end"] - span["start"])
    want = []
    for turn in turns[leaf].line():
        want += [None] * len(turn.prompt)
        want += labels(turn) or found[len(want):len(want) + len(turn.output)]
    check(name + f"weight versions {' '.join(sorted(set(want) - {None}))}", differ("policy", found, want))

# --- what verl reads ---

meta, tensors = safetensors(export("verl"))
others = json.loads(meta["non_tensor_batch"])
width = len(tensors["prompts"][0])
check("verl", differ("leaves", others["leaf"], [row[0] for row in rows]))
for at, (leaf, ids, mask, logprobs, entropies) in enumerate(rows):
    start = len(turns[leaf].line()[0].prompt)
    there = [i for i, real in enumerate(tensors["attention_mask"][at]) if real]
    zero = [0.0 if v is None else v for v in entropies[start:]]
    count = len(ids) - start
    check(f"verl, leaf {leaf}", differ("input_ids", [tensors["input_ids"][at][i] for i in there], ids)
          + differ("where", there, list(range(width - start, width + count)))
          + differ("responses", tensors["responses"][at][:count], ids[start:])
          + differ("response_mask", tensors["response_mask"][at], mask[start:] + [0] * (len(tensors["responses"][at]) - count))
          + differ("rollout_log_probs", tensors["rollout_log_probs"][at][:count],
                   [v if m else 0.0 for v, m in zip(single(lines[at]["logprobs"]), mask)][start:])
          + differ("rollout_entropys", tensors["rollout_entropys"][at][:count], zero))

label(before)
call(args.control, "DELETE", f"/v1/sessions/{NAME}")
print(f"{len(failed)} failed" if failed else "all checks passed")
sys.exit(bool(failed))
