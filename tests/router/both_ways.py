"""sglang-router downstream and upstream of tokentap. Prints a line per check, and stops with an error at the first that fails."""

import argparse
import http.client
import json
import urllib.parse

from processes import Processes, ask, until

TOKENS = 12
WORK = 32


def holds(what, condition, shown=""):
    if not condition:
        raise SystemExit(f"FAIL {what}: {shown}")
    print(f"ok   {what}", flush=True)


def greedy(**more):
    return {"input_ids": [10, 11, 12], "sampling_params": {"temperature": 0, "max_new_tokens": TOKENS, "ignore_eos": True}, **more}


def metric(control, name):
    lines = ask(f"{control}/metrics").body.decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((f"{name} ", f"{name}{{")))


def send_generation(data, body):
    """Sends a generation and returns the connection without reading the reply."""
    where = urllib.parse.urlsplit(data)
    connection = http.client.HTTPConnection(where.hostname, where.port)
    connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
    return connection


def router_upstream(processes, engines):
    """tokentap -> router -> engines."""
    router = processes.router("router-upstream", engines, "--policy", "round_robin")
    report = processes.check(router)
    holds("check names the engines of the router", all(engine.removeprefix("http://") in report for engine in engines), report)
    holds("check reports incremental streams", "ok    streams      incremental" in report, report)
    holds("check reports that the router drops the fields of flat base64", "return_flat_raw_top_logprobs_b64" in report, report)
    data, control, log = processes.serve("tokentap-before", router)

    direct = ask(f"{engines[0]}/generate", greedy()).json()
    bounds = {"entropy_options": {"bounds": True}}
    whole = ask(f"{data}/generate", greedy(**bounds)).json()
    entropies = whole["meta_info"]["output_token_entropy"]
    holds("a non-streaming reply has the engine's tokens", whole["output_ids"] == direct["output_ids"], whole)
    holds("a non-streaming reply has an entropy for each token", len(entropies) == TOKENS and None not in entropies, entropies)
    events = ask(f"{data}/generate", greedy(stream=True, **bounds)).events()
    ids = [one for event in events for one in event["output_ids"]]
    streamed = [one for event in events for one in event["meta_info"]["output_token_entropy"]]
    holds("a stream has the same tokens", ids == direct["output_ids"], ids)
    close = len(streamed) == TOKENS and all(abs(a - b) < 1e-5 for a, b in zip(streamed, entropies))
    holds("a stream has the same entropies", close, (streamed, entropies))
    asked = {"model": "tokentap-demo", "prompt": "The lamp", "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    text = ask(f"{data}/v1/completions", asked).json()["choices"][0]["text"]
    pieces = ask(f"{data}/v1/completions", {**asked, "stream": True}).events()
    streamed = "".join(event["choices"][0]["text"] for event in pieces if event["choices"])
    holds("a streamed completion has the complete text", streamed == text and text, (streamed, text))

    batch = ask(f"{data}/generate", greedy(input_ids=[[10, 11, 12]] * 3))
    holds("a batch without an id passes the router", batch.status == 200, batch.body[:500])
    same = [item["output_ids"] == direct["output_ids"] and None not in item["meta_info"]["output_token_entropy"] for item in batch.json()]
    holds("each item of the batch has the engine's tokens and their entropies", same == [True] * 3, batch.body[:2000])

    for way, stream in [("a non-streaming reply", False), ("a stream", True)]:
        # more work than an engine completes during this test
        rid = f"left-{stream}"
        body = greedy(rid=rid, stream=stream, return_logprob=True, top_logprobs_num=20)
        body["input_ids"] = [[10, 11, 12]] * WORK
        body["sampling_params"]["max_new_tokens"] = 4000
        sent = metric(control, "tokentap_aborts_sent_total")

        def runs():
            return any("Duplicate" in ask(f"{engine}/generate", short(f"{rid}_{WORK - 1}")).body.decode() for engine in engines)

        connection = send_generation(data, body)
        until(f"{way} is generated", runs)
        connection.close()
        until(f"the aborts of {way} are sent", lambda: metric(control, "tokentap_aborts_sent_total") == sent + WORK)
        until(f"{way} has ended at the engine", lambda: not runs(), 5)
        holds(f"a disconnect from {way} aborts the generation at the engine", True)
    log = log.read_text()
    holds("no log line asks for an admin key", "admin" not in log, log)


def short(rid):
    """A generation of one token with this rid, which an engine rejects while another request has the same rid."""
    return {"input_ids": [10], "rid": rid, "sampling_params": {"max_new_tokens": 1}}


def router_downstream(processes):
    """router -> tokentap -> engines, as in docs/guides/router.md."""
    flags = ["--entropy", "always", "--session-from", "routing-key"]
    sidecars = [processes.demo(f"sidecar-{index}", *flags) for index in range(2)]
    router = processes.router("router-downstream", [data for _, data, _ in sidecars], "--policy", "manual")

    def owners(session):
        return [control for _, _, control in sidecars if ask(f"{control}/v1/sessions/{session}/trajectories").status == 200]

    places = set()
    for run in range(6):
        key = {"x-smg-routing-key": f"run-{run}"}
        first = ask(f"{router}/generate", greedy(), key).json()
        entropies = first["meta_info"].get("output_token_entropy")
        if not entropies or len(entropies) != TOKENS:
            raise SystemExit(f"FAIL no entropies through the router: {first}")
        longer = greedy()
        longer["input_ids"] = [*longer["input_ids"], *first["output_ids"], 13]
        events = ask(f"{router}/generate", {**longer, "stream": True}, key).events()
        streamed = [one for event in events for one in event["meta_info"]["output_token_entropy"]]
        if len(streamed) != TOKENS:
            raise SystemExit(f"FAIL no entropies in a stream through the router: {events}")
        owner = owners(f"run-{run}")
        if len(owner) != 1:
            raise SystemExit(f"FAIL the calls of run-{run} are at {owner}")
        places.add(owner[0])
        rows = ask(f"{owner[0]}/v1/sessions/run-{run}/trajectories").json()
        paths = rows.get("trajectories", rows)
        if len(paths) != 1 or len(paths[0]["turns"]) != 2:
            raise SystemExit(f"FAIL run-{run} is not one path of two turns: {json.dumps(rows)[:2000]}")
    holds("through the router every generation has entropies, streaming or not", True)
    holds("the calls of a routing key are one session of one sidecar, one path of two turns", True)
    print(f"     the six sessions are at {len(places)} of the two sidecars")
    chat = {"model": "tokentap-demo", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
    reply = ask(f"{router}/v1/chat/completions", chat, {"x-smg-routing-key": "chat-1"})
    holds("a chat through the router is recorded under its routing key", reply.status == 200 and len(owners("chat-1")) == 1, reply.body)
    holds("the router has no /sessions/ID/generate", ask(f"{router}/sessions/x/generate", greedy()).status == 404)
    named = ask(f"{router}/generate", greedy(session_id="named"), {"X-Session-Id": "named"})
    holds("the router drops X-Session-Id and session_id", named.status == 200 and not owners("named"))


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--tokentap", required=True)
    arguments.add_argument("--work", required=True)
    arguments = arguments.parse_args()
    processes = Processes(arguments.tokentap, arguments.work)
    try:
        engines = [processes.demo(f"engine-{index}")[0] for index in range(2)]
        router_upstream(processes, engines)
        router_downstream(processes)
    finally:
        processes.end()


main()
