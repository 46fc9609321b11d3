#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tokens.py --base URL --model DIR [--how plugin|tokentap|intervals] [--no-lag] [--only WORDS] SUITE...

Compares the entropies of a real SGLang with the true ones, token by token.
  plugin     requests them from SGLang with custom_params.tokentap_entropy
  tokentap   sends ordinary requests to tokentap in front of SGLang; its replies must have `source: exact`
  intervals  tokentap in front of an SGLang without the plugin: the certified intervals must contain the true values
Suites: basic, penalties, streams, batches, neighbours, chunks, retraction, aborts. Prints a line per case; exit status 1 if one failed."""
import argparse
import concurrent.futures
import json
import pathlib
import random
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from weights import Weights  # noqa: E402
from wire import Stream, call, generate  # noqa: E402

arguments = argparse.ArgumentParser()
arguments.add_argument("--base", required=True)
arguments.add_argument("--model", required=True)
arguments.add_argument("--how", choices=["plugin", "tokentap", "intervals"], default="plugin")
arguments.add_argument("--no-lag", action="store_true", help="the server runs with --disable-overlap-schedule")
arguments.add_argument("--only", default="")
arguments.add_argument("suites", nargs="+")
args = arguments.parse_args()

TOLERANCE = 1e-4  # nats: two float32 forward passes; temperatures below 1 enlarge their difference
SLACK = 2e-4  # and the float32 logprobs on the wire, for intervals
FIELD = "output_token_entropy"
FOX, MAIN = "The quick brown fox jumps over the lazy dog and", "def main():\n    return"
NO_END = {"logit_bias": {"151645": -50, "151643": -50}}  # prevents end tokens; ignore_eos would reserve memory for all tokens
rng = random.Random(7)
weights = Weights(args.model, not args.no_lag)
failed, tokens, worst = [], 0, 0.0


def ask(prompt, sampling, wanted=True, **top):
    """A request with or without entropies, in the form of `--how`."""
    key = "text" if isinstance(prompt, str) or isinstance(prompt[0], str) else "input_ids"
    lists = sampling if isinstance(sampling, list) else [sampling]
    sampling = [{"max_new_tokens": 24} | each for each in lists]
    if args.how == "plugin" and wanted:
        sampling = [each | {"custom_params": {"tokentap_entropy": True}} for each in sampling]
    if args.how == "intervals":
        top |= {"entropy_options": {"bounds": True}}
    if args.how != "plugin":
        top |= {"return_entropy": wanted}
    return {key: prompt, "sampling_params": sampling if len(lists) > 1 else sampling[0]} | top


def post(body):
    reply = generate(args.base, body)
    if reply.status != 200:
        raise RuntimeError(f"{reply.status} {reply.body[:200]!r}")
    return reply.json()


def stream(body):
    """The sequences of a stream, each joined into one object, in any stream mode."""
    reply = generate(args.base, body | {"stream": True})
    return [whole(events) for events in by_index(reply.events())]


def by_index(events):
    indices = sorted({event.get("index", 0) for event in events})
    return [[event for event in events if event.get("index", 0) == index] for index in indices]


def whole(events):
    """One object of a sequence's events. In each event the lists must be as long as its ids are."""
    for event in events:
        length = len(event["meta_info"].get(FIELD, []))
        if length != len(event["output_ids"]):
            raise RuntimeError(f"an event with {len(event['output_ids'])} ids and {length} entropies")
    last = events[-1]
    if len(last["output_ids"]) == last["meta_info"]["completion_tokens"]:
        return last
    meta = dict(last["meta_info"])
    for key in [FIELD, f"{FIELD}_lower", f"{FIELD}_upper"]:
        if key in meta:
            meta[key] = [value for event in events for value in event["meta_info"][key]]
    return last | {"output_ids": [token for event in events for token in event["output_ids"]], "meta_info": meta}


def together(*calls):
    with concurrent.futures.ThreadPoolExecutor(len(calls)) as pool:
        return [future.result() for future in [pool.submit(each) for each in calls]]


def report(name, problem, note=""):
    if problem:
        failed.append(name)
    print(f"{'FAIL' if problem else 'ok':5} {args.how:9} {name:44} {problem or note}", flush=True)


def check(name, prompt, answer, sampling):
    """Compares each token of a reply with the weights."""
    global tokens, worst
    if args.only not in name:
        return
    meta, output = answer["meta_info"], answer["output_ids"]
    values = meta.get(FIELD)
    if values is None and not output and args.how == "plugin":
        return report(name, None, "nothing was sampled")  # SGLang then returns no list
    if values is None or len(values) != len(output):
        return report(name, f"{None if values is None else len(values)} entropies for {len(output)} tokens")
    if None in values:
        return report(name, f"{values.count(None)} nulls: {meta.get('entropy_info')}")
    truths = weights.entropies(prompt, output, sampling)
    truth = min(truths, key=lambda each: max((abs(value - h) for value, h in zip(values, each, strict=True)), default=0))
    tokens += len(output)
    note = f"{len(output):4} tokens, H {min(truth, default=0):.3f} to {max(truth, default=0):.3f}"
    if args.how == "intervals":
        pairs = zip(truth, meta[f"{FIELD}_lower"], meta[f"{FIELD}_upper"], strict=True)
        outside = max((max(low - h, h - high) for h, low, high in pairs), default=0)
        worst = max(worst, outside)
        return report(name, outside > SLACK and f"outside by {outside:.1e}", note)
    if args.how == "tokentap" and output and meta["entropy_info"]["source"] != "exact":
        return report(name, f"{meta['entropy_info']}")
    error = max((abs(value - h) for value, h in zip(values, truth, strict=True)), default=0)
    worst = max(worst, error)
    extra = f", cached {meta.get('cached_tokens')}, {meta['finish_reason']['type']}, retracted {meta.get('num_retractions')}"
    return report(name, error > TOLERANCE and f"off by {error:.1e} nat", f"{note}, off by {error:.1e}{extra}")


def one(name, sampling, prompt=FOX, **top):
    check(name, prompt, post(ask(prompt, sampling, **top)), sampling)


def basic():
    one("greedy", {"temperature": 0})
    for temperature in (0.3, 0.7, 1.0, 1.5):
        one(f"T {temperature}", {"temperature": temperature})
    for name, sampling in {
        "top_p": {"temperature": 0.7, "top_p": 0.9}, "top_k": {"temperature": 0.7, "top_k": 20},
        "min_p": {"temperature": 1.5, "min_p": 0.1}, "top_p and top_k": {"temperature": 1.5, "top_p": 0.5, "top_k": 50},
        "one token": {"temperature": 0.7, "max_new_tokens": 1}, "no token": {"temperature": 0.7, "max_new_tokens": 0},
        "stop string": {"temperature": 1.5, "stop": ["e", "a"], "max_new_tokens": 64},
        "stop id": {"temperature": 1, "logit_bias": {"1234": 9}, "stop_token_ids": [1234], "max_new_tokens": 99},
    }.items():
        one(name, sampling)
    one("own logprobs", {"temperature": 0.7}, return_logprob=True)
    one("prompt logprobs", {"temperature": 0.7}, return_logprob=True, logprob_start_len=0)
    far = FOX + " runs far away over the hills and far away" * 5
    one("long prompt", {"temperature": 0.7}, far)
    one("prefix cache hit", {"temperature": 0.7}, far)


def penalties():
    bias = {"logit_bias": {"151645": 4.0, "100": 8.0, "200": -5}}
    for name, sampling in {
        "logit_bias": {"temperature": 0.7} | bias, "logit_bias, greedy": {"temperature": 0} | bias,
        "frequency": {"temperature": 1, "frequency_penalty": 1.5}, "presence": {"temperature": 0.7, "presence_penalty": 1.5},
        "repetition": {"temperature": 1, "repetition_penalty": 1.3}, "min_new_tokens": {"temperature": 1, "min_new_tokens": 20},
        "all of them": {"temperature": 0.7, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5} | bias,
    }.items():
        one(name, sampling)


def streams():
    for name, sampling in {
        "T 0.7": {"temperature": 0.7}, "greedy": {"temperature": 0}, "n = 3": {"temperature": 1, "n": 3},
        "stop string": {"temperature": 1.5, "stop": ["e", "a"], "max_new_tokens": 64},
        "interval 5": {"temperature": 1, "stream_interval": 5}, "long": {"temperature": 1, "max_new_tokens": 200} | NO_END,
        "penalty": {"temperature": 1, "frequency_penalty": 1.0},
    }.items():
        for at, answer in enumerate(stream(ask(FOX, sampling))):
            check(f"stream {name} [{at}]", FOX, answer, sampling)


def batches():
    lists = [{"temperature": t, "max_new_tokens": 20 + 3 * at} for at, t in enumerate((0, 0.3, 0.7, 1, 1.5))]
    prompts = [FOX, MAIN, FOX, MAIN, FOX]
    for at, answer in enumerate(post(ask(prompts, lists))):
        check(f"batch [{at}] T {lists[at]['temperature']}", prompts[at], answer, lists[at])
    for at, answer in enumerate(post(ask(FOX, {"temperature": 1, "n": 3}))):
        check(f"n = 3 [{at}]", FOX, answer, {"temperature": 1})
    twice = [{"temperature": 1, "n": 2}] * 2
    for at, answer in enumerate(post(ask([FOX, MAIN], twice))):
        check(f"two prompts, n = 2 [{at}]", [FOX, MAIN][at // 2], answer, twice[0])
    kinds = [{"temperature": t, "max_new_tokens": 20 + 5 * at} for at, t in enumerate((0, 1, 0.3, 0.7, 1.5, 0, 1, 0.7, 0.5, 1.2))]
    answers = together(*(lambda each=each: post(ask(MAIN, each)) for each in kinds))
    for at, answer in enumerate(answers):
        check(f"ten at once [{at}] T {kinds[at]['temperature']}", MAIN, answer, kinds[at])


def neighbours():
    """A request without entropies gets no entropy member, even if the scheduler sends its tokens together with another request's."""
    long, short = {"temperature": 1, "max_new_tokens": 60} | NO_END, {"temperature": 1, "max_new_tokens": 20} | NO_END
    asking, silent, whole_reply = together(
        lambda: stream(ask(FOX, long)), lambda: generate(args.base, ask(MAIN, short, False) | {"stream": True}).events(),
        lambda: post(ask(MAIN, short, False)))
    check("streams beside a silent stream", FOX, asking[0], long)
    seen = [event for event in silent if FIELD in event["meta_info"]]
    report("silent stream", seen and f"the member is in {len(seen)} of {len(silent)} events", f"{len(silent)} events")
    report("silent request", FIELD in whole_reply["meta_info"] and "the reply has the member")
    if args.how == "plugin":
        asks = {"custom_params": {"tokentap_entropy": True}}
        lists = [{"max_new_tokens": 8} | NO_END | (asks if at % 2 else {}) for at in range(4)]
        answers = post({"text": [FOX] * 4, "sampling_params": lists})
        found = [FIELD in answer["meta_info"] for answer in answers]
        report("batch of which half requests entropies", found != [False, True, False, True] and f"{found}")
        for at in (1, 3):
            check(f"batch of which half requests entropies [{at}]", FOX, answers[at], lists[at])
        full = post(ask(FOX, {}) | {"sampling_params": {"max_new_tokens": 4, "custom_params": {"tokentap_entropy": "full"}}})
        check("only the full vocabulary requested", FOX, full, {})
        for odd in (False, None, 1, "yes", [], {}):
            answer = post({"text": FOX, "sampling_params": {"max_new_tokens": 2, "custom_params": {"tokentap_entropy": odd}}})
            report(f"tokentap_entropy: {odd!r}", FIELD in answer["meta_info"] and "the reply has entropies although the value is invalid")


def chunks():
    """For a server with --chunked-prefill-size 32: prompts of several chunks while others decode."""
    prompt = {size: [rng.randrange(1000, 90000) for _ in range(size)] for size in (5, 300, 33, 200, 64, 8, 150, 31)}
    kinds = {size: {"temperature": t, "max_new_tokens": 30} for size, t in zip(prompt, (0, 0.3, 0.7, 1, 1.5, 1, 0.7, 0))}
    answers = together(*(lambda size=size: post(ask(prompt[size], kinds[size])) for size in prompt))
    for size, answer in zip(prompt, answers):
        check(f"prompt of {size} in chunks", prompt[size], answer, kinds[size])
    again = prompt[300] + prompt[31]
    one("cached prefix, then chunks", {"temperature": 0.7}, again)
    penalty = {"temperature": 1, "frequency_penalty": 1.0, "logit_bias": {"5": 3.0}}
    one("chunks, penalty, bias", penalty, [rng.randrange(1000, 90000) for _ in range(100)])
    check("stream of a prompt in chunks", again, stream(ask(again, {"temperature": 0.7}))[0], {"temperature": 0.7})


def retraction():
    """For a server with --max-total-tokens 400: eight sequences that do not fit at the same time."""
    kinds = [{"temperature": (1, 0.7, 0, 1.5)[at % 4], "max_new_tokens": 120} | NO_END for at in range(8)]
    happened = 0
    # the scheduler decides on retractions: at most six rounds until there are two
    for turn in range(6):
        prompts = [[rng.randrange(1000, 90000) for _ in range(10)] for _ in kinds]
        answers = together(*(
            (lambda p=p, k=k: stream(ask(p, k))[0]) if at % 2 else (lambda p=p, k=k: post(ask(p, k)))
            for at, (p, k) in enumerate(zip(prompts, kinds))))
        for at, answer in enumerate(answers):
            check(f"turn {turn} [{at}] {'stream' if at % 2 else 'whole'}", prompts[at], answer, kinds[at])
        happened += sum(answer["meta_info"].get("num_retractions", 0) for answer in answers)
        if happened > 1:
            break
    report("retractions", happened < 2 and f"{happened} of them", f"{happened} in {turn + 1} turns")


def aborts():
    sampling = {"temperature": 1, "max_new_tokens": 2000} | NO_END
    for at in range(3):
        rid, events = f"cut-{rng.random()}", []
        open_stream = Stream(args.base, ask(FOX, sampling, rid=rid, stream=True))
        while event := open_stream.next():
            events.append(event)
            if len(events) == 10 + 7 * at:
                call(args.base, "POST", "/abort_request", {"rid": rid})
        answer = whole(events)
        check(f"aborted stream [{at}]", FOX, answer, sampling)
        report(f"aborted stream [{at}]: finish reason", answer["meta_info"]["finish_reason"]["type"] != "abort" and "not aborted")
    # a non-streaming request is aborted while it runs; a concurrent stream triggers the abort
    rid, done = f"cut-{rng.random()}", threading.Event()

    def cut():
        clock = Stream(args.base, ask(MAIN, sampling | {"max_new_tokens": 500}, stream=True))
        for _ in range(25):
            clock.next()
        call(args.base, "POST", "/abort_request", {"rid": rid})
        done.wait(60)
        clock.drop()

    def run():
        try:
            return post(ask(FOX, sampling, rid=rid))
        finally:
            done.set()

    answer, _ = together(run, cut)
    check("aborted, not streamed", FOX, answer, sampling)
    one("after a disconnect", {"temperature": 1})


SUITES = {name: globals()[name] for name in
          ("basic", "penalties", "streams", "batches", "neighbours", "chunks", "retraction", "aborts")}
for suite in args.suites:
    try:
        SUITES[suite]()
    except Exception as error:  # one invalid reply must not hide the other results
        report(suite, f"{type(error).__name__}: {error}")
print(f"{'FAIL' if failed else 'ok':5} {args.how}: {tokens} tokens, worst {worst:.1e} nat, {len(failed)} failed")
sys.exit(bool(failed))
