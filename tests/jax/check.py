# SPDX-License-Identifier: Apache-2.0
"""tokentap in front of a live sglang-jax: one mode of the engine, checked against the engine itself and its weights.

Prints a line per check; exit status 1 if one failed. tests/router and tests/real must be on the Python path."""

import argparse
import http.client
import json
import struct
import sys

import numpy as np
import same
from processes import Processes, ask, until
from weights import Weights, entropies
from wire import Stream

PROMPT, NEW, MORE = [10, 11, 12], 12, [13, 14]
# the same k as tokentap, because the engine compiles its model for each k
K = 20
# float32 logits of the engine against float64
SLACK = 2e-4
COMPILING = 300
# capabilities by mode: whether logprobs are streamed, and whether `output_ids` are the sampled tokens
MODES = {"overlap": (True, False), "no-overlap": (False, False), "skip-tokenizer": (True, True)}


def body(temperature=0, tokens=NEW, **more):
    return {"input_ids": PROMPT, "sampling_params": {"temperature": temperature, "max_new_tokens": tokens, "ignore_eos": True}} | more


def logprobs(**more):
    return {"return_logprob": True, "top_logprobs_num": K, "return_text_in_logprobs": False} | more


def ids(rows):
    return [row[1] for row in rows]


def single(values):
    """Numbers as float32, which tokentap exports."""
    return [None if value is None else struct.unpack("f", struct.pack("f", value))[0] for value in values]


class Check:
    """One engine, and a tokentap in front of it once `serve` was called."""

    def __init__(self, arguments, processes):
        self.processes, self.engine = processes, arguments.engine
        self.streams, self.sampled_ids = MODES[arguments.mode]
        self.weights = Weights(arguments.model)
        self.failed = 0

    def holds(self, what, condition, shown=""):
        self.failed += not condition
        print(f"ok    {what}" if condition else f"FAIL  {what}: {str(shown)[:1500]!r}", flush=True)

    def serve(self):
        self.data, self.control, _ = self.processes.serve("tokentap", self.engine)

    def direct(self, request):
        return ask(f"{self.engine}/generate", request, timeout=COMPILING)

    def via(self, request, session=None):
        path = f"/sessions/{session}/generate" if session else "/generate"
        return ask(f"{self.data}{path}", request, timeout=COMPILING)

    def fault(self, session):
        turns = ask(f"{self.control}/v1/sessions/{session}").json()["list"]
        return turns[0]["fault"] if len(turns) == 1 else f"{len(turns)} turns"

    def export(self, session):
        """The rows of a session, and the numbers of refused rows by reason."""
        reply = ask(f"{self.control}/v1/samples", {"sessions": [session], "format": "jsonl"})
        return [json.loads(line) for line in reply.body.splitlines()], json.loads(reply.headers["tokentap-refused"])

    def reference(self):
        """Requests the engine's own replies, and checks that they match the weights."""
        self.plain = self.direct(body())
        self.own = self.direct(body(**logprobs()))
        self.greedy = ids(self.own.json()["meta_info"]["output_token_logprobs"])
        self.holds("engine: the same tokens with logprobs and without", self.plain.json()["output_ids"] == self.greedy, self.plain.body)
        rows = self.weights.logprobs(PROMPT, self.greedy)
        self.holds("engine: each greedy token is the most probable one of the weights", rows.argmax(-1).tolist() == self.greedy, self.greedy)
        reported = [row[0] for row in self.own.json()["meta_info"]["output_token_logprobs"]]
        difference = np.abs(rows.max(-1) - np.array(reported)).max()
        self.holds("engine: its logprobs are those of the weights", difference < SLACK, difference)

    def report(self):
        """Checks the output of `tokentap check`."""
        report = self.processes.check(self.engine)
        print("".join(f"      | {line}\n" for line in report.splitlines()), end="")
        self.holds("check: the engine is sglang-jax", "is sglang-jax" in report, report)
        self.holds("check: whether logprobs can be streamed", ("logprobs can be streamed" in report) == self.streams, report)
        self.holds("check: whether turns without logprobs are trained", ("ids_unverified" in report) != self.sampled_ids, report)
        self.holds("check: names no flag that only SGLang has", "incremental-streaming-output" not in report, report)

    def replies(self):
        """Compares replies with those of the engine, and checks the added members."""
        reply = self.via(body())
        differences = same.head(self.plain, reply) + same.item(self.plain.json(), reply.json(), False, False)
        self.holds("reply: that of the engine", not differences, differences)
        info = reply.json()["meta_info"]["entropy_info"]
        self.holds("reply: no logprobs are forced unless the client requests entropies", info["reason"] == "jax", info)
        reply = self.via(body(**logprobs()))
        differences = same.head(self.own, reply) + same.item(self.own.json(), reply.json(), False, False)
        self.holds("reply with logprobs: that of the engine", not differences, differences)
        request = body(0.7, **logprobs(), return_entropy=True, entropy_options={"estimator": "renormalized"})
        meta = self.via(request).json()["meta_info"]
        tops = np.array([[entry[0] for entry in row] for row in meta["output_top_logprobs"]], dtype=np.float64)
        tops -= np.log(np.exp(tops).sum(-1, keepdims=True))
        difference = np.abs(entropies(tops) - np.array(meta["output_token_entropy"], dtype=np.float64)).max()
        self.holds(f"entropy: of the softmax of the reply's own top-{K}", difference < 1e-5, difference)

    def truth(self, what, item, temperature, prompt=PROMPT):
        """Compares the entropies of one reply with the full distribution."""
        meta, output = item["meta_info"], item["output_ids"]
        true = entropies(self.weights.logprobs(prompt, output, temperature))
        numbers = [meta.get(f"output_token_entropy{name}") or [] for name in ("", "_lower", "_upper")]
        whole = all(len(each) == len(output) == NEW and None not in each for each in numbers)
        if not whole:
            self.holds(f"entropy: one for each token, {what}", False, meta)
            return
        value, lower, upper = (np.array(each) for each in numbers)
        outside = np.maximum(lower - true, true - upper).max()
        summary = f"mean error {np.abs(value - true).mean():.3f} nat, mean width {(upper - lower).mean():.3f}"
        self.holds(f"entropy: each interval contains the true entropy, {what} ({summary})", outside < SLACK, outside)
        named = meta["entropy_info"]["temperature"]
        self.holds(f"entropy: the temperature is reported, {what}", named == temperature, meta["entropy_info"])

    def forced(self):
        """Entropies from logprobs that tokentap forces and removes."""
        wanted = {"return_entropy": True, "entropy_options": {"bounds": True}}
        for temperature in (0, 0.7, 1):
            item = self.via(body(temperature, **wanted)).json()
            self.truth(f"temperature {temperature}", item, temperature or 1)
            if temperature == 0:
                differences = same.item(self.plain.json(), item, False, False)
                self.holds("entropy: the rest of the reply is that of the engine", not differences, differences)
        prompts = [PROMPT, PROMPT + MORE]
        items = self.via(body(0.7, **wanted) | {"input_ids": prompts}).json()
        for number, (prompt, item) in enumerate(zip(prompts, items)):
            self.truth(f"item {number} of a batch", item, 0.7, prompt)
        reply = self.via(body(stream=True, **wanted))
        events = reply.events()
        direct = self.direct(body(stream=True)).events()
        whole = reply.body.rstrip().endswith(b"data: [DONE]") and [event["output_ids"] for event in events][-1:] == [self.greedy]
        self.holds("stream: complete, with the tokens of the engine", whole, reply.body)
        differences = same.item(direct[-1], events[-1], False, False)
        self.holds("stream: its last event is that of the engine", not differences, differences)
        if self.streams:
            short = [event for event in events if len(event["meta_info"]["output_token_entropy"]) != len(event["output_ids"])]
            self.holds("stream: each event has an entropy for each of its tokens", not short, short)
            self.truth("streamed", events[-1], 1)
        else:
            info = events[-1]["meta_info"]["entropy_info"]
            self.holds("stream: no logprobs are forced", info["source"] == "none" and info["reason"] == "jax_stream", info)

    def sessions(self):
        """The recorded turns and their faults, which depend on whether the sampled ids are known."""
        expected = None if self.sampled_ids else "ids_unverified"
        self.via(body(), "plain")
        self.holds(f"session: a turn without logprobs has the fault {expected}", self.fault("plain") == expected, self.fault("plain"))
        rows, refused = self.export("plain")
        if self.sampled_ids:
            whole = [row.get("token_ids") for row in rows] == [PROMPT + self.greedy]
            self.holds("session: its tokens are trained", whole and rows[0]["loss_mask"] == [0] * len(PROMPT) + [1] * NEW, rows)
        else:
            self.holds("session: its row is refused for that reason", not rows and refused == {"ids_unverified": 1}, (rows, refused))
        self.via(body(stream=True, return_entropy=True), "streamed")
        expected = None if self.streams else expected
        found = self.fault("streamed")
        self.holds(f"session: a stream that asks for entropies has the fault {expected}", found == expected, found)

        if not self.sampled_ids:
            request = body(return_entropy=True)
            del request["input_ids"]
            self.via(request | {"text": "The quick brown fox"}, "text")
            self.holds("session: a text prompt has the fault prompt_unknown", self.fault("text") == "prompt_unknown", self.fault("text"))

        stop = body(return_entropy=True)
        stop["sampling_params"] |= {"stop_token_ids": [self.greedy[2]], "ignore_eos": False}
        until_stop = self.greedy[: self.greedy.index(self.greedy[2]) + 1]
        listed = self.via(stop, "stopped").json()["output_ids"]
        rows, _ = self.export("stopped")
        whole = [row.get("token_ids") for row in rows] == [PROMPT + until_stop]
        left_out = " that output_ids leaves out" if listed != until_stop else ""
        self.holds(f"session: the stop token{left_out} is recorded", whole and self.fault("stopped") is None, rows)

    def conversation(self):
        """Compares the export of two turns with their replies."""
        first = self.via(body(0.7, **logprobs()), "dialog").json()["meta_info"]
        prompt = PROMPT + ids(first["output_token_logprobs"]) + MORE
        request = body(0.7, **logprobs(stream=self.streams)) | {"input_ids": prompt}
        reply = self.via(request, "dialog")
        second = (reply.events()[-1] if self.streams else reply.json())["meta_info"]
        expected = {"token_ids": [], "loss_mask": [], "logprobs": [], "entropy": []}
        for new, meta in ((PROMPT, first), (MORE, second)):
            rows = meta["output_token_logprobs"]
            expected["token_ids"] += new + ids(rows)
            expected["loss_mask"] += [0] * len(new) + [1] * len(rows)
            expected["logprobs"] += [None] * len(new) + [row[0] for row in rows]
            expected["entropy"] += [None] * len(new) + meta["output_token_entropy"]
        found, _ = self.export("dialog")
        self.holds("export: two turns are one row", len(found) == 1 and len(found[0].get("turns", [])) == 2, found)
        for name, values in expected.items():
            value = found[0].get(name)
            equal = single(value) == single(values) if name in ("logprobs", "entropy") else value == values
            self.holds(f"export: {name} equals that of the replies", equal, (value, values))

    def disconnect(self):
        """A disconnect aborts the generation."""

        def running():
            state = ask(f"{self.engine}/get_server_info").json()["internal_states"][0]
            return "left" in state["running_batch_rids"]

        stream = Stream(self.data, body(tokens=1900, rid="left", stream=True))
        stream.next()
        until("the engine runs the generation", running)
        stream.drop()
        until("the generation ends at the engine", lambda: not running(), 60)
        aborts = [line for line in ask(f"{self.control}/metrics").body.decode().splitlines() if line.startswith("tokentap_aborts_sent_total")]
        self.holds("abort: a disconnect aborts the generation", aborts and aborts[0].endswith(" 1"), aborts)

    def chat(self):
        """Chats are served by the engine's own endpoint, which returns no ids."""
        request = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": NEW, "temperature": 0}
        direct = ask(f"{self.engine}/v1/chat/completions", request, timeout=COMPILING)
        via = ask(f"{self.data}/sessions/chat/v1/chat/completions", request, timeout=COMPILING)
        self.holds("chat: that of the engine", via.status == 200 and via.json()["choices"] == direct.json()["choices"], via.body)
        session = ask(f"{self.control}/v1/sessions/chat").json()
        self.holds("chat: its session is incomplete", session["incomplete"] and session["turns"] == 0, session)

    def broken_stream(self):
        """Shows why no logprobs are forced on streams without the overlap schedule. Runs last, because the engine may crash."""
        for name, generate in (("engine", self.direct), ("tokentap", self.via)):
            try:
                events = generate(body(stream=True, **logprobs())).body.decode()
            except (OSError, http.client.HTTPException) as error:
                events = repr(error)
            self.holds(f"{name}: a stream with the client's own logprobs is cut in this mode", "[DONE]" not in events, events)


def main():
    parser = argparse.ArgumentParser()
    for name in ("engine", "model", "mode", "tokentap", "work"):
        parser.add_argument(f"--{name}", required=True)
    arguments = parser.parse_args()
    processes = Processes(arguments.tokentap, arguments.work)
    check = Check(arguments, processes)
    try:
        check.reference()
        check.report()
        check.serve()
        check.replies()
        check.forced()
        check.sessions()
        check.conversation()
        check.disconnect()
        if not check.sampled_ids:
            check.chat()
        if not check.streams:
            check.broken_stream()
    finally:
        processes.end()
    sys.exit(check.failed > 0)


main()
