#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""interruptions.py --via URL --control URL [--resumes]

Clients under load while a trainer pauses the engine, aborts what runs, and names new weights, with --pause-wait and --on-abort retry. Each
client calls again after a 503, or after an error event, until it has a whole reply. With --resumes tokentap has --on-abort resume, and no
client sees an interruption. Prints a line for each check; exit status 1 if one failed."""
import argparse
import secrets
import sys
import time
from concurrent.futures import ThreadPoolExecutor

from wire import call, generate

args = argparse.ArgumentParser()
args.add_argument("--via", required=True)
args.add_argument("--control", required=True)
args.add_argument("--resumes", action="store_true")
args = args.parse_args()
RUN, CLIENTS, UPDATES = secrets.token_hex(4), 8, 3
# long enough that streams run for more than two seconds after an abort, when SGLang aborts their ids again
TOKENS = 200
failed = []


def check(name, got, want):
    failed.extend([] if got == want else [name])
    print("ok   " if got == want else f"FAIL {got} instead of {want}:", "interruptions", name, flush=True)


def client(number):
    """The reply, and how often it was interrupted."""
    streams, session = number % 2 == 1, f"{RUN}-{number}"
    sampling = {"max_new_tokens": TOKENS, "ignore_eos": True}
    body = {"input_ids": list(range(5, 15 + number)), "sampling_params": sampling, "stream": streams}
    for attempt in range(50):
        reply = generate(args.via, body, path=f"/sessions/{session}/generate")
        if reply.status == 503:
            continue
        last = reply.events()[-1] if streams else reply.json()
        if "error" not in last:
            return last["meta_info"], attempt
    return None, 50


def metric(line):
    text = call(args.control, "GET", "/metrics").body.decode()
    return sum(float(found.split()[-1]) for found in text.splitlines() if found.startswith(line))


with ThreadPoolExecutor(CLIENTS) as pool:
    running = [pool.submit(client, number) for number in range(CLIENTS)]
    for update in range(UPDATES):
        while metric("tokentap_http_requests_active") < CLIENTS:
            time.sleep(0.05)
        time.sleep(0.5)
        check(f"pause {update}", call(args.control, "POST", "/pause_generation", {"mode": "abort"}).status, 200)
        version = {"new_version": f"v{update}", "abort_all_requests": False}
        check(f"update {update}", call(args.control, "POST", "/update_weight_version", version).status, 200)
        check(f"continue {update}", call(args.control, "POST", "/continue_generation", {}).status, 200)
    replies = [one.result() for one in running]
# random weights sample parts of characters, at which a generation is not continued
passed = [number for number, (meta, _) in enumerate(replies) if args.resumes and meta and meta["finish_reason"]["type"] == "abort"]
check("passed generations ended within a character", metric('tokentap_resume_obstacles_total{reason="character"}'), len(passed))
check("few were passed", len(passed) < CLIENTS // 2, True)
whole = [number for number in range(CLIENTS) if number not in passed]
check("every other client has a whole reply", {replies[number][0] and replies[number][0]["finish_reason"]["type"] for number in whole}, {"length"})
check("with all its tokens", {replies[number][0] and replies[number][0]["completion_tokens"] for number in whole}, {TOKENS})
interrupted = sum(attempts for _, attempts in replies)
if args.resumes:
    check("no client was interrupted", interrupted, 0)
    check("every whole reply was continued", metric('tokentap_interrupted_generations_total{outcome="resumed"}'), len(whole))
else:
    check("clients were interrupted", interrupted >= CLIENTS, True)
    check("calls waited for the trainer", metric('tokentap_pause_waits_total{outcome="continued"}') > 0, True)
check("no call waits", metric("tokentap_pause_waiting "), 0)
for number in whole:
    turns = call(args.control, "GET", f"/v1/sessions/{RUN}-{number}").json()["list"]
    faults = {turn["fault"] for turn in turns[:-1]}
    check(f"client {number} has one reply that is trained", (faults <= {"aborted"}, turns[-1]["fault"]), (True, None))
    paths = call(args.control, "GET", f"/v1/sessions/{RUN}-{number}/trajectories").json()["trajectories"]
    spans = [span for path in paths for span in path["policy"]]
    if args.resumes:
        check(f"client {number} has one turn of several policies", (len(turns), len(spans) > 1, spans[-1]["end"]), (1, True, TOKENS + 10 + number))
    check(f"every policy of client {number} is certain", [span for span in spans if "until" in span], [])
sys.exit(bool(failed))
