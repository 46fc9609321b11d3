#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""compare.py --direct URL --via URL [--control URL] --model DIR [--save DIR]

Sends the same requests to a real SGLang directly and through tokentap. Replies through tokentap must be the
direct ones plus the entropy members. Prints a line per check; exit status 1 if one failed.
--no-entropy expects no members: with --direct == --via it tests this program itself."""
import argparse
import concurrent.futures
import json
import pathlib
import secrets
import sys
import time

import cases
import same
import streams
from wire import Stream, call, generate, running

args = argparse.ArgumentParser()
args.add_argument("--direct", required=True)
args.add_argument("--via", required=True)
args.add_argument("--control")
args.add_argument("--model", required=True, help="directory of the served weights; its config.json has the vocabulary size")
args.add_argument("--save", help="write replies for truth.py here")
args.add_argument("--no-entropy", action="store_true")
args.add_argument("--original", action="store_true", help="the server runs with SGLANG_RETURN_ORIGINAL_LOGPROB=1")
args.add_argument("--only", default="", help="run only checks whose line contains this")
args = args.parse_args()
VOCAB = json.loads((pathlib.Path(args.model) / "config.json").read_text())["vocab_size"]
VERSION = call(args.direct, "GET", "/get_server_info").json()["version"]
failed = []


def report(kind, name, differences):
    differences = differences or []
    failed.extend([f"{kind} {name}"] * bool(differences))
    print(f"{'FAIL' if differences else 'ok':5} {kind:8} {name}", *differences, sep="\n        ", flush=True)


def check(kind, name, run, *given):
    if args.only and args.only not in f"{kind} {name}":
        return
    try:
        report(kind, name, run(*given))
    except Exception as error:  # one invalid reply must not hide the other results
        report(kind, name, [f"{type(error).__name__}: {error}"])


# --- entropy members ---

def temperature(body):
    """The expected entropy_info.temperature: the temperature of the logprobs that the engine returns."""
    params = body["sampling_params"]
    asked = params[0] if isinstance(params, list) else params
    greedy = asked.get("temperature", 1) == 0 or asked.get("top_k") == 1
    return 1 if args.original or greedy else asked.get("temperature", 1)


def members(body, meta, output_ids):
    """The entropy members of a finished generation."""
    asked = not isinstance(body, dict) or body.get("return_entropy", True)
    if args.no_entropy or not asked:
        return [f"{k} although not requested" for k in same.ENTROPY if k in meta]
    if "output_token_entropy" not in meta or "entropy_info" not in meta:
        return ["no output_token_entropy or entropy_info"]
    values, info, out = meta["output_token_entropy"], meta["entropy_info"], []
    if len(values) != len(output_ids) or len(values) != meta["completion_tokens"]:
        out.append(f"{len(values)} entropies for {len(output_ids)} ids, {meta['completion_tokens']} tokens")
    if any(v is None or not -1e-6 <= v <= 20 for v in values):
        out.append(f"invalid entropies: {values}")
    if values and abs(info["mean"] - sum(values) / len(values)) > 1e-4:
        out.append(f"mean {info['mean']} of {values}")
    want = {"source": "top_k", "unit": "nats", "vocab_size": VOCAB}
    want |= {"temperature": temperature(body)} if isinstance(body, dict) else {}
    return out + [f"entropy_info.{k} is {info.get(k)!r}, not {v!r}" for k, v in want.items() if values and info.get(k) != v]


# --- the same request twice ---

def items(reply):
    body = reply.json()
    return body if isinstance(body, list) else [body]


def compare_items(body, direct, via, sampled):
    out = [] if len(direct) == len(via) else [f"{len(via)} items instead of {len(direct)}"]
    named = isinstance(body, dict) and "rid" in body
    for a, b in zip(direct, via):
        out += same.item(a, b, sampled, named)
        out += members(body, b["meta_info"], b["output_ids"]) if "meta_info" in b else []
    return out


def plain(body, sampled, direct=None):
    direct = direct or generate(args.direct, body)
    via = generate(args.via, body)
    out = same.head(direct, via)
    if direct.status != 200 or via.status != 200:
        return out + [] if direct.body == via.body else out + [f"{via.body[:300]} instead of {direct.body[:300]}"]
    if isinstance(direct.json(), list) != isinstance(via.json(), list):
        out.append("one is a list, the other an object")
    return out + compare_items(body, items(direct), items(via), sampled)


def stream(body):
    sampled = body["sampling_params"]["temperature"] > 0
    direct, via = generate(args.direct, body), generate(args.via, body)
    out = same.head(direct, via)
    if not direct.done() or not via.done():
        out.append("no [DONE]")
    direct, via = direct.events(), via.events()
    for a, b in zip(map(streams.shapes, [direct, via]), ["direct", "via"]):
        if not a[1]:
            return out + [f"{b}: no event has a finish reason"]
    if streams.shapes(direct) != streams.shapes(via):
        out.append(f"event keys {streams.shapes(via)} instead of {streams.shapes(direct)}")
    direct, via = streams.by_index(direct), streams.by_index(via)
    for a, b in zip(direct, via):
        out += modes(streams.modes(a), streams.modes(b)) + growth(body, b)
    return out + compare_items(body, [streams.fold(e) for e in direct], [streams.fold(e) for e in via], sampled)


def modes(direct, via):
    out = [f"{k} is {'cumulative' if via[k] else 'incremental'}, directly it is not"
           for k in set(direct) & set(via) if direct[k] != via[k] and not k.startswith("output_token_entropy")]
    entropy = via.get("output_token_entropy")
    # 0.5.6 --stream-output mixes the modes of its members; there entropies may follow the ids or the logprobs
    if entropy is not None and entropy not in (via["output_ids"], via.get("text")):
        out.append("the mode of the entropies is neither that of output_ids nor that of text")
    return out


def growth(body, events):
    """Entropies arrive in the event of their tokens, entropy_info only in the last event of the generation."""
    if args.no_entropy or body.get("return_entropy") is False:
        return []
    out = []
    for event in events:
        meta = event["meta_info"]
        if ("entropy_info" in meta) != bool(meta["finish_reason"]):
            out.append(f"entropy_info {'missing at' if meta['finish_reason'] else 'before'} the finish")
        if len(meta.get("output_token_entropy", [])) not in (len(event["output_ids"]), meta["completion_tokens"]):
            out.append(f"{meta.get('output_token_entropy')} with ids {event['output_ids']}")
    return out[:3]


def long_stream():
    """Above 512 tokens no top-k is forced on a cumulative stream: it has no entropies, and a reason."""
    via = streams.by_index(generate(args.via, cases.LONG).events())[0]
    direct = streams.by_index(generate(args.direct, cases.LONG).events())[0]
    out = same.item(streams.fold(direct), streams.fold(via), False, False)
    info = via[-1]["meta_info"].get("entropy_info")
    if not args.no_entropy and streams.modes(direct).get("text"):
        if not info or (info["source"], info.get("reason")) != ("none", "cumulative_stream"):
            out.append(f"entropy_info {info}")
    return out


def error(method, path, body):
    direct, via = call(args.direct, method, path, body), call(args.via, method, path, body)
    out = same.head(direct, via)
    return out if direct.body == via.body else out + [f"{via.body[:300]} instead of {direct.body[:300]}"]


def refused(body):
    reply = generate(args.via, body, 30)
    # 0.5.23 answers some of them with 500; 502 would mean that the engine crashed
    out = [] if 400 <= reply.status <= 500 else [f"status {reply.status}: {reply.body[:200]}"]
    after = generate(args.direct, cases.GREEDY["one token"], 30)
    return out if after.status == 200 else out + ["the engine has crashed"]


def at_once():
    """Every greedy request in eight threads: a reply must not depend on concurrent requests."""
    # 0.5.12 ends if a batch has a request with token_ids_logprob and one without
    crashing = {"chosen ids"} if VERSION == "0.5.12" else set()

    def steady(name, body):  # rids must be unique; in "no tokens" an engine under load may return a first logprob
        return name not in crashing and "no tokens" not in name and not (isinstance(body, dict) and "rid" in body)
    bodies = {n: b for n, b in cases.GREEDY.items() if steady(n, b)}
    direct = {n: generate(args.direct, b) for n, b in bodies.items()}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda n: [f"{n}: {d}" for d in plain(bodies[n], False, direct[n])], bodies)
        return [d for f in found for d in f]


# --- behaviour in time ---

ENDLESS = cases.ask(cases.MORE, 2000, sampling=cases.WHOLE)  # takes over ten seconds, so that an early end means an abort


def wait(what, holds, seconds):
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            return [f"{what} did not happen in {seconds} s"]
        time.sleep(0.2)
    return []


def idle():
    return running(args.direct) == 0


def name(what):
    return f"compare-{what}-{secrets.token_hex(4)}"


def leave_stream():
    out = wait("idle before", idle, 20)
    connection = Stream(args.via, ENDLESS | {"stream": True, "rid": name("leave")})
    for _ in range(3):
        connection.next()
    out += [] if running(args.direct) else ["the engine is not running the generation"]
    connection.drop()
    return out + wait("the abort in the engine", idle, 6)


def leave_plain():
    out = wait("idle before", idle, 20)
    connection = Stream(args.via, ENDLESS | {"rid": name("leave")})
    out += wait("the start of the generation", lambda: running(args.direct), 10)
    connection.drop()
    # the engine itself checks for a disconnect every 4 s
    return out + wait("the abort in the engine", idle, 6)


def abort(base):
    rid = name("abort")
    connection = Stream(base, ENDLESS | {"stream": True, "rid": rid})
    events = [connection.next() for _ in range(3)]
    reply = call(base, "POST", "/abort_request", {"rid": rid})
    while event := connection.next():
        events.append(event)
    meta = events[-1]["meta_info"]
    return reply, meta["finish_reason"], events


def abort_both():
    (direct, wanted, _), (via, finish, events) = abort(args.direct), abort(args.via)
    out = same.head(direct, via) + ([] if direct.body == via.body else [f"body {via.body[:100]}"])
    out += [] if wanted == finish else [f"finish_reason {finish} instead of {wanted}"]
    return out + wait("idle after", idle, 8)


def live():
    """The control port has the entropies of a running stream, equal to those of the stream."""
    rid, polled, early = name("live"), [], 0
    body = cases.ask(cases.MORE, 200, sampling=cases.WHOLE, stream=True, rid=rid)
    connection, events = Stream(args.via, body), []
    while event := connection.next():
        events.append(event)
        if len(events) % 20 == 0:
            reply = call(args.control, "GET", f"/v1/requests/{rid}/entropy?since={len(polled)}")
            if reply.status != 200:
                return [f"status {reply.status}: {reply.body[:200]}"]
            values = reply.json()
            # the list itself, or the first list of the object
            values = values if isinstance(values, list) else next(v for v in values.values() if isinstance(v, list))
            polled += values
            early += bool(values) and not event["meta_info"]["finish_reason"]
    final = streams.fold(events)["meta_info"]["output_token_entropy"]
    out = [] if early >= 2 else [f"only {early} polls found entropies before the end"]
    return out if polled == final[:len(polled)] else out + [f"polled {polled[:5]}..., the stream has {final[:5]}..."]


def save(label, body):
    reply = generate(args.via, body)
    found = [streams.fold(e) for e in streams.by_index(reply.events())] if body.get("stream") else items(reply)
    text = json.dumps({"request": body, "items": found})
    (pathlib.Path(args.save) / f"{label.replace(', ', '-').replace(' ', '_')}.json").write_text(text)
    return [d for f in found for d in members(body, f["meta_info"], f["output_ids"])]


def ready():
    """Waits until tokentap has probed the engine and knows the temperature of its logprobs."""
    def knows():
        reply = generate(args.via, cases.DRAWN["T 0.7"])
        return reply.json()["meta_info"]["entropy_info"].get("temperature") is not None
    # the first generation after the start of the server took 34 s on two busy cores
    return wait("the probe", knows, 120)


if not args.no_entropy:
    check("start", "probe", ready)
for label, body in cases.GREEDY.items():
    check("greedy", label, plain, body, False)
for label, body in cases.DRAWN.items():
    check("drawn", label, plain, body, True)
for label, body in cases.STREAMS.items():
    check("stream", label, stream, body)
check("stream", "long", long_stream)
for label, given in cases.ERRORS.items():
    check("error", label, error, *given)
check("at once", "greedy", at_once)
check("leave", "stream", leave_stream)
check("leave", "plain", leave_plain)
check("abort", "stream", abort_both)
if args.control and not args.no_entropy:
    check("live", "entropy", live)
if args.save:
    pathlib.Path(args.save).mkdir(parents=True, exist_ok=True)
    for label, body in cases.TRUTH.items():
        check("save", label, save, label, body)
if not args.no_entropy:  # last, because a request that is not rejected crashes the engine
    for label, body in cases.DEADLY.items():
        check("refuse", label, refused, body)
print(f"{len(failed)} failed" if failed else "all checks passed")
sys.exit(bool(failed))
