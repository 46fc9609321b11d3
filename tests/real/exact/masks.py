#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""masks.py --base URL [--through]   tests logit processors that run after the plugin, in a server with --grammar-backend xgrammar
--enable-custom-logit-processor: a grammar, which the plugin also applies; a client's own processor, whose entropies are null while
those of a concurrent request are not; and the support of each token, which needs no plugin. --through: the URL is tokentap's.
The reference is the logprobs of the reply: of all tokens that the grammar allows, or of the whole support."""
import argparse
import concurrent.futures
import json
import math
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))
from wire import generate  # noqa: E402

arguments = argparse.ArgumentParser()
arguments.add_argument("--base", required=True)
arguments.add_argument("--through", action="store_true")
args = arguments.parse_args()
FIELD = "output_token_entropy"
ASK = {} if args.through else {"custom_params": {"tokentap_entropy": True}}
failed = 0


def post(body):
    reply = generate(args.base, body)
    if reply.status != 200:
        raise RuntimeError(f"{reply.status} {reply.body[:300]!r}")
    return reply.json()


def report(name, problem, note=""):
    global failed
    failed += bool(problem)
    print(f"{'FAIL' if problem else 'ok':5} {'tokentap' if args.through else 'plugin':9} {name:44} {problem or note}", flush=True)


def entropy(logprobs):
    return -sum(math.exp(value) * value for value in logprobs if value is not None and value > -1e30)


def compare(name, values, truth, tolerance):
    if values is None or len(values) != len(truth) or None in values:
        return report(name, f"{values}")
    error = max(abs(a - b) for a, b in zip(values, truth))
    report(name, error > tolerance and f"off by {error:.1e} nat", f"{len(values):4} tokens, off by {error:.1e}")


def grammar():
    sampling = {"temperature": 0.7, "max_new_tokens": 12, "regex": "(yes|no|maybe)( and (yes|no|maybe)){2}"} | ASK
    meta = post({"text": "The quick", "sampling_params": sampling, "return_logprob": True, "top_logprobs_num": 400})["meta_info"]
    rows = [[value for value, _, _ in row] for row in meta["output_top_logprobs"]]
    legal = [sum(value is not None and value > -1e30 for value in row) for row in rows]
    report("a row has every allowed token", max(legal) >= 400 and f"{legal}", f"at most {max(legal)} of 400")
    compare("grammar", meta.get(FIELD), [entropy(row) for row in rows], 1e-4)
    for name, more in {"stream": {"stream": True}, "json": {}}.items():
        grammar = {"regex": sampling["regex"]} if more else {"json_schema": json.dumps({"type": "object"})}
        body = {"text": "The quick", "sampling_params": {"temperature": 0, "max_new_tokens": 10} | grammar | ASK} | more
        reply = generate(args.base, body)
        meta = (reply.events()[-1] if more else reply.json())["meta_info"]
        values = meta.get(FIELD) or [None]
        report(f"grammar, greedy, {name}", None in values and f"{values}", f"{len(values)} numbers")


def processor():
    from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor

    class Half(CustomLogitProcessor):
        def __call__(self, logits, custom_param_list=None):
            return logits * 0.5

    plain = {"temperature": 1, "max_new_tokens": 12, "logit_bias": {"151645": -50, "151643": -50}}
    own = {"sampling_params": plain | {"custom_params": {"x": 1} | ASK.get("custom_params", {})}, "text": "The quick",
           "custom_logit_processor": Half().to_str()}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        changed, beside = pool.map(post, [own, {"text": "The quick", "sampling_params": plain | ASK}])
    values, beside = changed["meta_info"].get(FIELD), beside["meta_info"].get(FIELD)
    if args.through:
        source = changed["meta_info"]["entropy_info"]["source"]
        report("own processor: top-k instead", source != "top_k" and source, source)
    else:
        report("own processor: null", values != [None] * 12 and f"{values}")
    report("own processor: concurrent request", (beside is None or None in beside) and f"{beside}", "12 numbers")


def support():
    """Without the plugin: `sampled` is the entropy over the support that the engine reports."""
    for name, sampling in {"top_k 20": {"top_k": 20}, "top_k 20, top_p 0.8": {"top_k": 20, "top_p": 0.8},
                           "top_k 50, min_p 0.05": {"top_k": 50, "min_p": 0.05}, "greedy": {"temperature": 0}}.items():
        sampling = {"temperature": 0.9, "max_new_tokens": 12} | sampling
        for stream in (False, True):
            # the client requests it as well, so that the reply has the support that belongs to the entropy
            body = {"text": "The quick", "sampling_params": sampling, "return_sampling_mask": True, "stream": stream,
                    "sampling_logprobs_mode": "support", "entropy_options": {"estimator": "sampled"}}
            reply = generate(args.base, body)
            meta = (reply.events()[-1] if stream else reply.json())["meta_info"]
            truth = [entropy(row) for row in meta["output_token_sampling_logprobs"]]
            named = f"sampled, {name}{', stream' if stream else ''}"
            compare(named, meta[FIELD], truth, 1e-5)
            info = meta["entropy_info"]
            report(named, (info["source"], info["estimator"]) != ("exact", "sampled") and f"{info}", info["source"])
            forced = {key: value for key, value in body.items() if not key.endswith(("_mask", "_mode", "stream"))}
            left = [key for key in post(forced)["meta_info"] if "sampling" in key]
            report(f"{named}: forced masks are removed", left)


for part in [grammar, processor] + [support] * args.through:
    try:
        part()
    except Exception as error:  # one invalid reply must not hide the other results
        report(part.__name__, f"{type(error).__name__}: {error}")
sys.exit(failed > 0)
