#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""logprobs.py --base URL [--group PID] [--rounds N] [--clients N]... [--tokens N]   measures what logprobs cost an SGLang server: the same generations
without logprobs, with the chosen logprob (k = 0), and with the top 5 and the top 20, streamed and not, in the form that tokentap asks for. It needs only
Python's standard library and a server that is otherwise idle; tokentap is not involved.

Every round runs each kind once, in another order. Printed are medians over the rounds; a ratio compares a kind with k = 0 in the same round."""
import argparse
import concurrent.futures
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).parent))
from wire import call, generate  # noqa: E402

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("--base", required=True)
arguments.add_argument("--group", type=int, help="the process group of a server on this machine, whose CPU time is measured too")
arguments.add_argument("--rounds", type=int, default=11)
arguments.add_argument("--clients", type=int, action="append", help="requests at a time; may be repeated (1 and 8)")
arguments.add_argument("--tokens", type=int, default=64, help="sampled tokens of a request")
args = arguments.parse_args()

# ids of common pieces of text in every vocabulary of a language model, without the special ones at its ends
PROMPT = list(range(300, 332))
# what tokentap adds to a reply that is not streamed, if the engine has it; streams have the nested form
FLAT = {"return_flat_raw_output_top_logprobs": True, "return_flat_raw_top_logprobs_b64": True}
KINDS = {"none": {}, "k = 0": {"return_logprob": True}}
for k in (5, 20):
    KINDS[f"k = {k}"] = {"return_logprob": True, "top_logprobs_num": k}


def body(kind, stream, at):
    sampling = {"temperature": 0.8, "max_new_tokens": args.tokens, "ignore_eos": True}
    # other first ids for each request, so that none finds another's prompt in the cache of prefixes
    one = {"input_ids": [at % 200 + 100, *PROMPT], "sampling_params": sampling, "stream": stream} | KINDS[kind]
    return one | FLAT if not stream and one.get("top_logprobs_num") else one


def checked(reply, kind, stream):
    """The number of bytes of a reply that has what was asked for."""
    assert reply.status == 200, reply.body[:500]
    if not stream:
        info, ids = reply.json()["meta_info"], reply.json()["output_ids"]
        # an engine without the flat form ignores its members
        tops = info.get("output_top_logprobs_val_flat_b64") or info.get("output_top_logprobs")
        assert len(ids) == args.tokens, len(ids)
    else:
        infos = [event["meta_info"] for event in reply.events()]
        assert reply.done() and infos[-1]["completion_tokens"] == args.tokens, infos[-1]
        tops = any(info.get("output_top_logprobs") for info in infos)
    assert bool(tops) == (kind not in ("none", "k = 0")), f"{kind}: top logprobs {bool(tops)}"
    return len(reply.body)


def cpu_seconds():
    """What the processes of the group have used, which other programs on the machine disturb less than the time on the clock."""
    ticks = 0
    for folder in pathlib.Path("/proc").glob("[0-9]*") if args.group else ():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        # the fields after the name: state, parent, group; user and system time are the 12th and 13th
        if int(fields[2]) == args.group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def run(kind, stream, clients):
    """Milliseconds a token on the clock, milliseconds of CPU a token, and bytes a token."""
    bodies = [body(kind, stream, at) for at in range(clients)]
    with concurrent.futures.ThreadPoolExecutor(clients) as pool:
        used, begun = cpu_seconds(), time.perf_counter()
        replies = list(pool.map(lambda one: generate(args.base, one), bodies))
        took = time.perf_counter() - begun
        used = cpu_seconds() - used
    tokens = clients * args.tokens
    size = sum(checked(reply, kind, stream) for reply in replies)
    return took / tokens * 1e3, used / tokens * 1e3, size / tokens


def over_zero(found):
    """Each kind: the median of the ratios to k = 0 in the same round, with the lowest and the highest."""
    for kind, times in found.items():
        ratios = sorted(one / zero for one, zero in zip(times, found["k = 0"]))
        yield kind, f"{statistics.median(ratios):.2f} x ({ratios[0]:.2f} to {ratios[-1]:.2f})"


def measure(stream, clients):
    clock, cpu, sizes = {kind: [] for kind in KINDS}, {kind: [] for kind in KINDS}, {}
    for kind in KINDS:
        run(kind, stream, clients)
    order = list(KINDS)
    for turn in range(args.rounds):
        at = turn % len(order)
        for kind in order[at:] + order[:at]:
            took, used, sizes[kind] = run(kind, stream, clients)
            clock[kind].append(took)
            cpu[kind].append(used)
    how = "streamed" if stream else "not streamed"
    print(f"\n{how}, {clients} at a time, {args.tokens} tokens each, medians of {args.rounds} rounds (lowest to highest)\n")
    columns = ["logprobs", "tokens/s", "ms a token of one request", "time over k = 0", "bytes a token"]
    clock_ratios, cpu_ratios = dict(over_zero(clock)), {}
    if args.group:
        columns[4:4] = ["CPU ms a token", "CPU over k = 0"]
        cpu_ratios = dict(over_zero(cpu))
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for kind, took in clock.items():
        median = statistics.median(took)
        cells = [kind, f"{1e3 / median:.1f}", f"{median * clients:.2f}", clock_ratios[kind]]
        if args.group:
            cells += [f"{statistics.median(cpu[kind]):.2f}", cpu_ratios[kind]]
        print(f"| {' | '.join(cells)} | {sizes[kind]:.0f} |", flush=True)


info = call(args.base, "GET", "/get_server_info").json()
print(f"SGLang {info.get('version')}, {info.get('model_path')}, device {info.get('device')}, {info.get('dtype')}, "
      f"incremental streams {info.get('incremental_streaming_output')}")
for clients in args.clients or [1, 8]:
    for stream in (False, True):
        measure(stream, clients)
