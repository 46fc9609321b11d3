#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check.py --direct URL --via URL --control URL --model FOLDER [--streams] [--no-guard]

Conversations with a new screenshot in each turn, through tokentap to a real SGLang. What tokentap records is compared with the echoes of
the engine, which are asked for directly, with transformers' processor, and with the weights. Prints a line per check; exit status 1 if
one failed."""
import argparse
import base64
import http.server
import re
import secrets
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import streams
from pictures import FORMATS, SIZES, media_type, screenshot
from recorded import PATIENCE, SLACK, Truth, answer, check, data_uri, differ, digest, exported, failed, single
from weights import Weights
from wire import call, generate

TEMPERATURES = [0.0, 1.0, 0.7, 1.5]
ADDRESS = re.compile(rb"at 0x[0-9a-f]+")


@dataclass
class Turn:
    """A generation from the view of its client. `sent` are the ids of the whole prompt, with a placeholder for each of `pictures`."""

    index: int
    parent: "Turn | None"
    sent: list
    pictures: list
    output: list
    meta: dict
    number: "int | None" = None

    def line(self):
        return [*(self.parent.line() if self.parent else []), self]


class Session:
    """A conversation of a client, which sends the ids of all turns and all their pictures."""

    def __init__(self, args, weights, name):
        self.args, self.weights, self.name, self.turns = args, weights, f"{name}-{secrets.token_hex(4)}", []
        self.cumulative = set()  # whether the streams were

    def message(self, text, after=None):
        """The ids of a user's message with a picture. Some are not those that a tokenizer makes."""
        w = self.weights
        ended = after is None or after.output[-1:] == w.encode("<|im_end|>")
        opening = "" if after is None else "\n" if ended else "<|im_end|>\n"
        split = w.encode("he") + w.encode("llo")
        return [*w.encode(f"{opening}<|im_start|>user\n"), w.start, w.pad, w.end, *w.encode(text), *split,
                *w.encode("<|im_end|>\n<|im_start|>assistant\n")]

    def body(self, sent, pictures, n=1, **sampling):
        uris = [data_uri(picture) for picture in pictures]
        params = {"max_new_tokens": 12, "temperature": 1.0, **sampling} | ({"n": n} if n > 1 else {})
        return {"input_ids": sent, "image_data": [uris] if n > 1 else uris, "return_logprob": True, "sampling_params": params}

    def send(self, body):
        return generate(self.args.via, body | {"entropy_options": {"bounds": True}}, PATIENCE, f"/sessions/{self.name}/generate")

    def ask(self, body):
        """The generations of the reply, streamed or whole."""
        reply = self.send(body)
        if body.get("stream") and reply.status == 200:
            samples = streams.by_index(reply.events())
            self.cumulative |= {streams.modes(events).get("output_ids") for events in samples}
            return [streams.fold(events) for events in samples]
        items = answer(reply)
        return items if isinstance(items, list) else [items]

    def go(self, after, text, picture, stream=False, n=1, expanded=False, **sampling):
        """Sends a message with this picture after a turn, whose prompt may be sent as the engine expanded it; returns the new turns."""
        message = self.message(text, after)
        sent, pictures = message, [picture]
        if after:
            sent, pictures = after.sent + after.output + message, [*after.pictures, picture]
        body = self.body(sent, pictures, n, **sampling) | {"stream": stream}
        if expanded and after:
            body["input_ids"] = self.weights.expand(after.sent, after.pictures)[0] + after.output + message
        return self.add(after, sent, pictures, self.ask(body))

    def add(self, after, sent, pictures, items):
        made = [Turn(at, after, sent, pictures, item["output_ids"], item["meta_info"]) for at, item in enumerate(items)]
        self.turns += made
        return made

    def echo(self, turn):
        """The reply of the engine to the same prompt, asked for directly and greedily."""
        body = self.body(turn.sent, turn.pictures, temperature=0.0) | {"return_prompt_token_ids": True}
        return answer(generate(self.args.direct, body, PATIENCE))

    def control(self, path=""):
        return call(self.args.control, "GET", f"/v1/sessions/{self.name}{path}", timeout=PATIENCE)

    def exported(self):
        return exported(self.args.control, self.name)

    def faults(self):
        return answer(self.control())["faults"]


def expected(session):
    """The rows that the client's view gives: a leaf, ids, mask, logprobs, entropies, and pictures with the turn that brought them and their
    bytes."""
    rows, taken = [], set()
    followed = {turn.parent.number for turn in session.turns if turn.parent}
    for leaf in sorted((turn for turn in session.turns if turn.number not in followed), key=lambda turn: turn.number):
        ids, mask, logprobs, entropies, images, known = [], [], [], [], [], 0
        for turn in leaf.line():
            prompt, spans = session.weights.expand(turn.sent, turn.pictures)
            images += [{"turn": turn.number, "start": start, "end": end, "sha256": digest(picture), "media_type": media_type(picture),
                        "bytes": len(picture), "available": True}
                       for (start, end), picture in list(zip(spans, turn.pictures, strict=True))[known:]]
            known = len(turn.pictures)
            nothing, trained = [None] * (len(prompt) - len(ids)), turn.number not in taken
            ids = prompt + turn.output
            mask += [0] * len(nothing) + [int(trained)] * len(turn.output)
            meta = turn.meta
            logprobs += nothing + [row[0] for row in meta["output_token_logprobs"]]
            entropies += nothing + meta["output_token_entropy"]
            taken.add(turn.number)
        embedded = [base64.b64encode(picture).decode() for picture in leaf.pictures]
        rows.append({"leaf": leaf.number, "token_ids": ids, "loss_mask": mask, "images": images, "image_data": embedded,
                     "logprobs": single(logprobs), "entropy": single(entropies)})
    return rows


def recorded(session, name, causes):
    """Compares the rows of a session with the client's view, the engine's echoes and the weights."""
    rows, refused = session.exported()
    by_rid = {(turn["rid"], turn["index"]): turn for row in rows for turn in row["turns"]}
    for turn in session.turns:
        # the samples of one request may end in another order than that of the reply
        turn.number = by_rid[turn.meta["id"], turn.index]["id"]
    turns, want = {turn["id"]: turn for turn in by_rid.values()}, expected(session)
    differences = differ("leaves", [row["leaf"] for row in rows], [row["leaf"] for row in want])
    for row, expects in zip(rows, want, strict=False):
        row |= {key: single(row[key]) for key in ("logprobs", "entropy")}
        differences += [d for key, value in expects.items() for d in differ(f"{key} of leaf {row['leaf']}", row[key], value)]
    for turn in session.turns:
        found = turns[turn.number]
        differences += differ(f"parent of turn {turn.number}", found["parent"], turn.parent and turn.parent.number)
        for key in ("output_token_entropy_lower", "output_token_entropy_upper"):
            differences += differ(f"{key} of turn {turn.number}", single(found["extras"][key]), single(turn.meta[key]))
    unknown = {turn["cause"] for turn in turns.values()} - causes
    check(f"{name}: {len(want)} rows, {len(turns)} turns", differences + differ("faults", session.faults(), {})
          + differ("refused rows", refused, {}) + sorted(unknown))

    differences, greedy = [], 0
    for turn in session.turns:
        prompt, _ = session.weights.expand(turn.sent, turn.pictures)
        reply = session.echo(turn)
        differences += differ(f"turn {turn.number}: the engine's echo", reply["prompt_token_ids"], prompt)
        if turns[turn.number]["sampling"]["temperature"] == 0.0:
            greedy += 1
            differences += differ(f"turn {turn.number}: the engine's greedy tokens", turn.output, reply["output_ids"])
    check(f"{name}: {len(session.turns)} prompts as the engine echoes them to a direct call, and {greedy} greedy replies", differences)

    images = {image["sha256"] for row in rows for image in row["images"]}
    sent = {digest(picture): picture for turn in session.turns for picture in turn.pictures}
    replies = {image: session.control(f"/images/{image}") for image in images & set(sent)}
    check(f"{name}: {len(images)} pictures by their hash", differ("hashes", images, set(sent)) + [
        d for image, reply in replies.items() for d in differ("status", reply.status, 200) + differ("bytes", reply.body, sent[image])])

    truth, leaves = Truth(session.weights), {turn.number: turn for turn in session.turns}
    for row in rows:
        truth.add(row, leaves[row["leaf"]].pictures)
    truth.check(name)
    return rows


def conversation(args, weights, stream, n):
    """Ten turns, each with a screenshot of another size; with n > 1 the first sample is continued."""
    name = f"{'streamed' if stream else 'whole'}, n = {n}"
    session, after = Session(args, weights, f"s{int(stream)}{n}"), None
    for at, size in enumerate(SIZES):
        # greedy samples of one prompt are equal, so that either is continued
        temperature = TEMPERATURES[at % len(TEMPERATURES)] if n == 1 else 1.0
        after = session.go(after, f"What does step {at} show?", screenshot(size, at + 20 * n), stream, n, temperature=temperature)[0]
    rows = recorded(session, name, {"first", "extends", "extends_length"} | ({"sample"} if n > 1 else set()))
    longest = max(rows, key=lambda row: len(row["turns"]))
    check(f"{name}: one path of all turns", differ("turns", len(longest["turns"]), len(SIZES))
          + differ("cumulative", session.cumulative, {not args.streams} if stream else set()),
          f"{len(longest['token_ids'])} tokens, pictures of {[image['end'] - image['start'] for image in longest['images']]} tokens; "
          f"cached {[turn['cached_tokens'] for turn in longest['turns']]}")
    return session


def expanded(args, weights):
    """A client that sends the prompts of its earlier turns as the engine expanded them."""
    session, after = Session(args, weights, "expanded"), None
    for at, size in enumerate(SIZES[:4]):
        [after] = session.go(after, f"And step {at}?", screenshot(size, 80 + at), stream=at % 2 == 1, expanded=True)
    recorded(session, "expanded histories", {"first", "extends", "extends_length"})


def replaced(session):
    """The same conversation with another first picture of the same size: the same ids, but other pixels."""
    turn, name = session.turns[1], "a replaced picture"
    pictures = [screenshot(SIZES[0], 999), *turn.pictures[1:]]
    check(f"{name} has the same ids", differ("ids", *(session.weights.expand(turn.sent, each) for each in (pictures, turn.pictures))))
    [item] = session.ask(session.body(turn.sent, pictures))
    session.add(None, turn.sent, pictures, [item])
    rows = recorded(session, name, {"first", "extends", "extends_length", "history_edited"})
    check(f"{name} begins a branch", differ("turns of the rows", [len(row["turns"]) for row in rows], [len(SIZES), 1]))
    # the numbers depend on the pixels, so the comparison with the weights finds a wrong picture
    truth = Truth(session.weights)
    truth.add(rows[1], turn.pictures)
    check(f"{name} changes the numbers", [] if truth.logprob > 100 * SLACK else ["they are equal"],
          f"with the other picture: {truth.figures()}")


def batch(args, weights):
    """Two prompts in a request, with one and two pictures."""
    session = Session(args, weights, "batch")
    for stream in (False, True):
        one, two = session.message("One."), session.message("Two.") + session.message("And this?")
        pictures = [screenshot(size, 60 + at) for at, size in enumerate(SIZES[:3])]
        body = session.body([one, two], []) | {"image_data": [[data_uri(pictures[0])], list(map(data_uri, pictures[1:]))], "stream": stream}
        first, second = session.ask(body)
        session.add(None, one, pictures[:1], [first])
        session.add(None, two, pictures[1:], [second])[0].index = 1
    recorded(session, "batches", {"first", "sample", "new_conversation"})


def formats(args, weights):
    """Other formats than PNG, and pixels that a processor converts."""
    for name, picture in FORMATS.items():
        session = Session(args, weights, "format")
        session.go(None, "What is it?", picture)
        recorded(session, name, {"first"})


def faulty(args, weights, name, fault, change, reply):
    """A call whose pictures are not known: it is served, and not trained. `reply` checks the engine's own."""
    picture = screenshot(SIZES[1], 70)
    for stream in (False, True):
        session = Session(args, weights, "faulty")
        body = change(weights, session.body(session.message("See."), [picture]))
        direct = answer(generate(args.direct, body | {"return_prompt_token_ids": True}, PATIENCE))
        [item] = session.ask(body | {"stream": stream})
        check(f"{name}, {'streamed' if stream else 'whole'}: {fault}", reply(weights, body, direct["prompt_token_ids"])
              + differ("faults", session.faults(), {fault: 1}) + differ("exported and refused rows", session.exported(), ([], {fault: 1}))
              + differ("tokens", len(item["output_ids"]), item["meta_info"]["completion_tokens"]))


def without_placeholder(weights, body):
    return body | {"input_ids": [token for token in body["input_ids"] if token not in (weights.start, weights.pad, weights.end)]}


def without_frame(weights, body):
    return body | {"input_ids": [token for token in body["input_ids"] if token not in (weights.start, weights.end)]}


def with_another(_, body):
    return body | {"image_data": [*body["image_data"], data_uri(screenshot(SIZES[6], 71))]}


def with_text(weights, body):
    return body | {"text": weights.processor.tokenizer.decode(body["input_ids"])}


def tokenised_anew(weights, body, echo):
    """The echo has the tokenizer's ids of the text, which are others than those that were sent."""
    sent, canonical, echoed = (
        [token for token in ids if token != weights.pad]
        for ids in (body["input_ids"], weights.encode(weights.processor.tokenizer.decode(body["input_ids"])), echo))
    return differ("the engine's echo", echoed, canonical) + (["the ids are those of the tokenizer"] if canonical == sent else [])


def unverified(args, weights):
    """Without tokentap's guard: the processor tokenises the prompt anew, or leaves a picture out, which only its echo shows."""

    def one_picture(weights, body, echo):
        return differ("the engine's echo", echo, weights.expand(body["input_ids"], [screenshot(SIZES[1], 70)])[0])

    faulty(args, weights, "a picture without a placeholder", "images_unverified", without_placeholder, tokenised_anew)
    faulty(args, weights, "two pictures and a placeholder", "images_unverified", with_another, one_picture)


def unframed(args, weights):
    """A placeholder between other tokens than those that the template writes around it."""
    name = "a placeholder without a frame"
    if "Qwen2_5" in type(weights.model).__name__:
        faulty(args, weights, name, "images_unverified", without_frame, tokenised_anew)
        return
    # Qwen3-VL's processor expands it where it is
    session, picture = Session(args, weights, "bare"), screenshot(SIZES[1], 70)
    body = without_frame(weights, session.body(session.message("See."), [picture]))
    session.add(None, body["input_ids"], [picture], session.ask(body))
    recorded(session, name, {"first"})


def with_sampled(weights, body):
    """A placeholder that stands for no picture, as the model may sample it."""
    return body | {"input_ids": [*body["input_ids"], weights.pad, *weights.encode("<|im_end|>\n<|im_start|>assistant\n")]}


def spelled(weights, body):
    """A text of several tokens that spells the placeholder. Qwen2.5-VL's processor never answers such ids."""
    text = [token for part in ("<|", "image_pad", "|>") for token in weights.encode(part)]
    assert weights.processor.tokenizer.decode(text) == "<|image_pad|>" and weights.pad not in text
    return body | {"input_ids": [*text, *body["input_ids"]]}


def refusals(args):
    """The numbers of requests that the guard has refused, by rule."""
    metrics = call(args.control, "GET", "/metrics").body.decode()
    return {rule: int(count) for rule, count in re.findall(r'^tokentap_guard_refusals_total\{rule="(\w+)"\} (\d+)$', metrics, re.MULTILINE)}


def guarded(args, weights):
    """tokentap refuses prompts of which some processors fail, and does not send them."""
    for name, change, rule in [
            ("a picture without a placeholder", without_placeholder, "image_count"),
            ("two pictures and a placeholder", with_another, "image_count"),
            ("a sampled placeholder", with_sampled, "image_placeholder"),
            ("a text that spells the placeholder", spelled, "image_text")]:
        session, before = Session(args, weights, "refused"), refusals(args)
        reply = session.send(change(weights, session.body(session.message("See."), [screenshot(SIZES[1], 70)])))
        check(f"{name} is refused", differ("status", reply.status, 400) + differ("status of the session", session.control().status, 404)
              + differ("refusals", refusals(args), before | {rule: before.get(rule, 0) + 1}), reply.body[-120:].decode())


def remote(args, weights):
    """A picture behind a URL, which the engine fetches."""
    picture = screenshot(SIZES[1], 70)

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("content-length", str(len(picture)))
            self.end_headers()
            self.wfile.write(picture)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/screen.png"
    faulty(args, weights, "a remote picture", "image_remote", lambda _, body: body | {"image_data": [url]},
           lambda _, body, echo: differ("the engine's echo", echo, weights.expand(body["input_ids"], [picture])[0]))
    server.shutdown()


def undecodable(args, weights):
    """A picture that the engine refuses."""
    whole = screenshot(SIZES[1], 70)
    for name, content in [("no picture", b"no picture"), ("a truncated picture", whole[:len(whole) // 2])]:
        for stream in (False, True):
            session = Session(args, weights, "broken")
            uri = f"data:image/png;base64,{base64.b64encode(content).decode()}"
            body = session.body(session.message("See."), []) | {"image_data": [uri], "stream": stream}
            direct, via = generate(args.direct, body, PATIENCE), session.send(body)
            errors = [(reply.status, ADDRESS.sub(b"", reply.body)) for reply in (via, direct)]
            check(f"{name}, {'streamed' if stream else 'whole'}: the engine's error", differ("reply", *errors)
                  + ([] if b"error" in direct.body and (stream or direct.status == 400) else [f"the engine serves it: {direct.body[:200]}"])
                  + differ("status of the session", session.control().status, 404), f"{via.status} {via.body[-120:].decode()!r}")


def warm_up(args, weights):
    """The first picture of a new server takes up to a minute. tokentap asks for echoes once it has probed the engine."""
    until = time.monotonic() + 120
    while True:
        session = Session(args, weights, "first")
        session.go(None, "Hello.", screenshot(SIZES[1], 0))
        if session.faults() != {"prompt_unknown": 1}:
            return
        if time.monotonic() > until:
            raise SystemExit("tokentap does not ask for an echo")


def main():
    parser = argparse.ArgumentParser()
    for name in ("direct", "via", "control", "model"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--streams", action="store_true", help="the server's streams are incremental: only what depends on it")
    parser.add_argument("--no-guard", action="store_true", help="tokentap runs with --no-guard: only what it refuses otherwise")
    args = parser.parse_args()
    weights = Weights(args.model)
    warm_up(args, weights)
    if args.no_guard:
        unverified(args, weights)
    else:
        sessions = [conversation(args, weights, stream, n) for stream in ((True,) if args.streams else (False, True)) for n in (1, 2)]
        batch(args, weights)
        faulty(args, weights, "ids and a text", "images_unverified", with_text, tokenised_anew)
        remote(args, weights)
        undecodable(args, weights)
        if not args.streams:
            replaced(sessions[0])
            expanded(args, weights)
            unframed(args, weights)
            guarded(args, weights)
            formats(args, weights)
    print(f"{len(failed)} failed" if failed else "all checks passed")
    sys.exit(bool(failed))


main()
