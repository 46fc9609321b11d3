# SPDX-License-Identifier: Apache-2.0
"""sglang-router downstream and upstream of tokentap. Prints a line per check, and stops with an error at the first that fails."""

import argparse
import http.client
import json
import select
import socket
import time
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


def start_generation(data, body, engines, rid):
    """Sends a generation, waits until an engine runs `rid`, and returns the connection."""
    where = urllib.parse.urlsplit(data)
    for _ in range(5):
        connection = http.client.HTTPConnection(where.hostname, where.port)
        connection.request("POST", "/generate", json.dumps(body), {"content-type": "application/json"})
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline:
            if is_running(engines, rid):
                return connection
            # is_running uses the rid itself for a moment, and the generation may have been rejected for this
            if select.select([connection.sock], [], [], 0)[0] and b"Duplicate" in connection.sock.recv(1 << 16, socket.MSG_PEEK):
                break
        connection.close()
    raise SystemExit(f"never ran: {rid}")


def is_running(engines, rid):
    """Whether an engine runs this request: it rejects another one with the same rid."""
    body = {"input_ids": [10], "rid": rid, "sampling_params": {"max_new_tokens": 1}}
    return any("Duplicate" in ask(f"{engine}/generate", body).body.decode() for engine in engines)


def router_upstream(processes, engines):
    """tokentap -> router -> engines."""
    router = processes.router("router-upstream", engines, "--policy", "round_robin")
    report = processes.check(router)
    holds("check names the engines of the router", all(engine.removeprefix("http://") in report for engine in engines), report)
    holds("check reports incremental streams", "ok    streams      incremental" in report, report)
    holds("check warns that updates without a label are not recognised", "warn  weights      weight_version default: an update" in report, report)
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

        last = f"{rid}_{WORK - 1}"
        connection = start_generation(data, body, engines, last)
        connection.close()
        until(f"the aborts of {way} are sent", lambda: metric(control, "tokentap_aborts_sent_total") == sent + WORK)
        until(f"{way} has ended at the engine", lambda last=last: not is_running(engines, last), 5)
        holds(f"a disconnect from {way} aborts the generation at the engine", True)
    log = log.read_text()
    holds("no log line asks for an admin key", "admin" not in log, log)


def mixed_weights(processes):
    """tokentap -> router -> engines, one of which gets new weights before the other."""
    engines = [processes.demo(f"mixed-{index}")[0] for index in range(2)]
    router = processes.router("router-mixed", engines, "--policy", "round_robin")
    data, control, _ = processes.serve("tokentap-mixed", router)
    path = ask(f"{engines[1]}/model_info").json()["model_path"]
    update = ask(f"{engines[1]}/update_weights_from_disk", {"model_path": path, "weight_version": "step-2"})
    holds("one engine has new weights", update.json()["success"], update.body)
    labels = {ask(f"{engine}/model_info").json()["weight_version"]: engine for engine in engines}
    holds("the engines have different labels", sorted(labels) == ["default", "step-2"], labels)

    prompt, served = greedy()["input_ids"], []
    for turn in range(6):
        body = {**greedy(input_ids=prompt), "stream": turn % 3 == 2}
        reply = ask(f"{data}/sessions/mixed/generate", body)
        ids = [one for event in reply.events() for one in event["output_ids"]] if body["stream"] else reply.json()["output_ids"]
        label = (reply.events()[-1] if body["stream"] else reply.json())["meta_info"]["weight_version"]
        direct = ask(f"{labels[label]}/generate", greedy(input_ids=prompt)).json()["output_ids"]
        if ids != direct:
            raise SystemExit(f"FAIL turn {turn} differs from the reply of {labels[label]}: {ids} {direct}")
        served.append(label)
        prompt = [*prompt, *ids, 13]
    holds("the turns of a session come from both engines", served[:2] in (["default", "step-2"], ["step-2", "default"]) and served == served[:2] * 3, served)
    paths = ask(f"{control}/v1/sessions/mixed/trajectories").json()["trajectories"]
    holds("they are one path with the exact tokens", len(paths) == 1 and paths[0]["token_ids"] == prompt[:-1], paths)
    holds("each has all its logprobs and entropies", trained(paths[0]) == 6 * TOKENS, paths[0])
    spans = paths[0]["policy"]
    holds("each span has the label of its engine", [span["weight_version"] for span in spans] == served, spans)
    epochs = {(span["weight_version"], span["epoch"]) for span in spans}
    holds("each label has one epoch", len(epochs) == 2 and len({epoch for _, epoch in epochs}) == 2, spans)
    certain = not any("until" in span for span in spans) and "policy_uncertain" not in paths[0]["flags"]
    holds("every span is certain", certain and "crosses_versions" in paths[0]["flags"], (spans, paths[0]["flags"]))
    holds("the epoch does not advance with each change of the engine", ask(f"{control}/v1/policy").json()["epoch"] == 1, spans)

    # it counts its epochs itself, and starts while the weights differ
    other, other_control, _ = processes.serve("tokentap-mixed-too", router)
    both = [ask(f"{other}/sessions/mixed/generate", greedy()).json()["meta_info"]["weight_version"] for _ in range(4)]
    paths = ask(f"{other_control}/v1/sessions/mixed/trajectories").json()["trajectories"]
    spans = [span for path in paths for span in path["policy"]]
    epochs = {span["weight_version"]: span["epoch"] for span in spans}
    certain = len(spans) == 4 and not any("until" in span or epochs[span["weight_version"]] != span["epoch"] for span in spans)
    holds("another tokentap has the same labels", set(both) == set(epochs) == set(served) and certain, (both, spans))

    report = processes.check(router)
    differ = "the engines of the router differ in weight_version" in report and '"step-2"' in report
    holds("check says that the weights differ", "warn  weights " in report and differ, report)

    for engine in engines:
        ask(f"{engine}/update_weights_from_disk", {"model_path": path, "weight_version": "step-3"})
    begun = ask(f"{control}/v1/policy", {"version": "step-3"}).json()["epoch"]
    for turn in range(2):
        ask(f"{data}/sessions/same/generate", greedy())
    spans = [span for row in ask(f"{control}/v1/sessions/same/trajectories").json()["trajectories"] for span in row["policy"]]
    named = {(span["epoch"], span["weight_version"], span["version"]) for span in spans}
    holds("after POST /v1/policy both engines are in the named epoch", named == {(begun, "step-3", "step-3")}, spans)


def affinity(processes):
    """tokentap -> router -> engines: the calls of a session go to one engine, by the key that tokentap adds."""
    engines = [processes.demo(f"affinity-{index}")[0] for index in range(2)]
    for index, engine in enumerate(engines):
        path = ask(f"{engine}/model_info").json()["model_path"]
        ask(f"{engine}/update_weights_from_disk", {"model_path": path, "weight_version": f"engine-{index}"})
    router = processes.router("router-affinity", engines, "--policy", "manual")

    def served(data, session, turns=6):
        """The engines of the turns of a session, by their labels."""
        replies = [ask(f"{data}/sessions/{session}/generate", greedy()) for _ in range(turns)]
        return {reply.json()["meta_info"]["weight_version"] for reply in replies}

    data, _, _ = processes.serve("tokentap-affinity", router)
    sessions = [served(data, f"kept-{index}") for index in range(8)]
    holds("each session is served by one engine", all(len(labels) == 1 for labels in sessions), sessions)
    holds("both engines serve sessions", len(set.union(*sessions)) == 2, sessions)
    data, _, _ = processes.serve("tokentap-no-affinity", router, "--routing-key", "off")
    sessions = [served(data, f"scattered-{index}") for index in range(8)]
    holds("with --routing-key off sessions are scattered", any(len(labels) == 2 for labels in sessions), sessions)


def trained(path):
    """The number of tokens of a path that are trained and have a logprob and an entropy."""
    return sum(mask == 1 and None not in (logprob, entropy) for mask, logprob, entropy in zip(path["loss_mask"], path["logprobs"], path["entropy"]))


def aborts(processes, engines):
    """Aborts by rid through a router, at one of two tokentaps before it."""
    router = processes.router("router-aborts", engines, "--policy", "round_robin")
    ports = [processes.serve(f"tokentap-aborts-{index}", router)[:2] for index in range(2)]
    holds("the router has no /abort_request", ask(f"{router}/abort_request", {"rid": "abort"}).status == 404)

    # the second one does not run the request
    ways = {"the data port": ports[0][0], "the control port": ports[0][1], "the control port of another tokentap": ports[1][1]}
    for index, (way, url) in enumerate(ways.items()):
        for stream in [False, True]:
            # more work than an engine completes before the abort
            rid = f"abort-{index}-{stream}"
            body = greedy(rid=rid, stream=stream, return_logprob=True, top_logprobs_num=200)
            body["sampling_params"]["max_new_tokens"] = 4000
            connection = start_generation(ports[0][0], body, engines, rid)
            answer = ask(f"{url}/abort_request", {"rid": rid})
            reply = connection.getresponse().read().decode()
            aborted = answer.status == 200 and '"type":"abort"' in reply
            holds(f"{way} aborts {'a stream' if stream else 'a non-streaming reply'}", aborted, (answer.status, reply[-500:]))
            connection.close()
    elsewhere = ask(f"{ports[1][0]}/abort_request", {"rid": "abort"})
    holds("the data port of another tokentap refuses the abort", elsewhere.status == 404, (elsewhere.status, elsewhere.body))


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
        aborts(processes, engines)
        mixed_weights(processes)
        affinity(processes)
        router_downstream(processes)
    finally:
        processes.end()


main()
