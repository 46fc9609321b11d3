#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""chats.py --direct URL --via URL --control URL --model FOLDER --log FILE

Chats, Messages and Responses through tokentap to a real SGLang: ten turns with a new screenshot in each, whole and streamed, after a tool
that returns one. Recorded prompts must be those that the engine processed (FILE, written by prompt_log.py), the first one that of
transformers; all turns must be trained. Prints a line per check; exit status 1 if one failed."""
import argparse
import base64
import json
import secrets
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pictures import SIZES, media_type, screenshot
from recorded import PATIENCE, Truth, answer, check, data_uri, differ, digest, exported, failed
from weights import Weights
from wire import call, generate

SYSTEM, ASKED, SAID, CALL = "Be brief.", "Look at the page.", "Looking.", {"page": "1"}


@dataclass
class Reply:
    """A reply: its text, what its client appends to the history, the tokens of its prompt, and the ids, if they were asked for."""

    text: str
    history: list
    prompt: int
    ids: "tuple | None" = None


class Chat:
    path = "/v1/chat/completions"

    def opening(self, picture):
        call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": json.dumps(CALL)}}
        return [{"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED},
                {"role": "assistant", "content": SAID, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": "c1", "content": [self.image(picture)]}]

    def image(self, picture):
        return {"type": "image_url", "image_url": {"url": data_uri(picture)}}

    def user(self, text, picture):
        return {"role": "user", "content": [{"type": "text", "text": text}, self.image(picture)]}

    def body(self, history):
        return {"model": "tiny", "messages": history, "max_tokens": 12}

    def whole(self, reply):
        [choice] = reply["choices"]
        ids = choice["prompt_token_ids"], choice["response_token_ids"]
        return Reply(choice["message"]["content"], [choice["message"]], reply["usage"]["prompt_tokens"], ids)

    def streamed(self, events):
        text = "".join(choice["delta"].get("content") or "" for event in events for choice in event["choices"])
        usage = [event["usage"] for event in events if event.get("usage")]
        return Reply(text, [{"role": "assistant", "content": text}], usage[-1]["prompt_tokens"])

    # SGLang does not return ids in streams
    modes = ({"return_token_ids": True}, {"stream": True, "stream_options": {"include_usage": True}})


class Messages:
    path = "/v1/messages"

    def opening(self, picture):
        return [{"role": "user", "content": ASKED},
                {"role": "assistant", "content": [
                    {"type": "text", "text": SAID}, {"type": "tool_use", "id": "c1", "name": "look", "input": CALL}]},
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [self.image(picture)]}]}]

    def image(self, picture):
        return {"type": "image", "source": {
            "type": "base64", "media_type": media_type(picture), "data": base64.b64encode(picture).decode()}}

    def user(self, text, picture):
        return {"role": "user", "content": [{"type": "text", "text": text}, self.image(picture)]}

    def body(self, history):
        # the first message of a user follows a result in the same message, because roles alternate
        merged = []
        for message in history:
            if merged and merged[-1]["role"] == message["role"]:
                merged[-1] = message | {"content": merged[-1]["content"] + message["content"]}
            else:
                merged.append(message)
        return {"model": "tiny", "system": SYSTEM, "messages": merged, "max_tokens": 12}

    def whole(self, reply):
        usage = reply["usage"]
        prompt = usage["input_tokens"] + (usage.get("cache_read_input_tokens") or 0)
        return Reply("".join(block["text"] for block in reply["content"]), [{"role": "assistant", "content": reply["content"]}], prompt)

    def streamed(self, events):
        text = "".join(event["delta"]["text"] for event in events if event["type"] == "content_block_delta")
        usage = {}
        for event in events:
            usage |= (event.get("message") or event).get("usage") or {}
        return self.whole({"content": [{"type": "text", "text": text}], "usage": usage})

    modes = ({}, {"stream": True})


class Responses:
    path = "/v1/responses"

    def opening(self, picture):
        return [{"role": "user", "content": ASKED}, {"role": "assistant", "content": SAID},
                {"type": "function_call", "call_id": "c1", "name": "look", "arguments": json.dumps(CALL)},
                {"type": "function_call_output", "call_id": "c1", "output": [self.image(picture)]}]

    def image(self, picture):
        return {"type": "input_image", "detail": "auto", "image_url": data_uri(picture)}

    def user(self, text, picture):
        return {"role": "user", "content": [{"type": "input_text", "text": text}, self.image(picture)]}

    def body(self, history):
        return {"model": "tiny", "instructions": SYSTEM, "input": history, "max_output_tokens": 12}

    def whole(self, reply):
        text = "".join(part["text"] for item in reply["output"] for part in item["content"])
        return Reply(text, reply["output"], reply["usage"]["input_tokens"])

    def streamed(self, events):
        return self.whole(next(event["response"] for event in events if event["type"] in ("response.completed", "response.incomplete")))

    modes = ({}, {"stream": True})


class StoredResponses(Responses):
    """Each call names the response before it instead of the history."""

    def body(self, history):
        named = [item for item in history if "previous" in item]
        body = super().body(history[history.index(named[-1]) + 1:] if named else history)
        return body | ({"previous_response_id": named[-1]["previous"]} if named else {})

    def whole(self, reply):
        return replace(super().whole(reply), history=[{"previous": reply["id"]}])


def events(reply):
    return [json.loads(line[6:]) for line in reply.body.decode().splitlines() if line.startswith("data: {")]


def first_prompt(weights, pictures):
    """The prompt of transformers, not expanded."""
    call = {"type": "function", "function": {"name": "look", "arguments": CALL}}
    messages = [
        {"role": "system", "content": SYSTEM}, {"role": "user", "content": ASKED},
        {"role": "assistant", "content": SAID, "tool_calls": [call]},
        {"role": "tool", "content": [{"type": "image"}]},
        {"role": "user", "content": [{"type": "text", "text": "What does step 0 show?"}, {"type": "image"}]},
    ]
    text = weights.processor.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return weights.expand(weights.encode(text), pictures)[0]


def conversation(args, weights, api, stream):
    name = f"{type(api).__name__}, {'streamed' if stream else 'whole'}"
    session, seed = f"{type(api).__name__.lower()}-{secrets.token_hex(4)}", 100
    pictures = [screenshot((300, 200), seed)]
    history, replies = api.opening(pictures[0]), []
    logged = Path(args.log).read_text().count("\n")
    for at, size in enumerate(SIZES):
        pictures.append(screenshot(size, seed + 1 + at))
        history.append(api.user(f"What does step {at} show?", pictures[-1]))
        body = api.body(history) | {"temperature": [0.0, 1.0][at % 2]} | api.modes[stream]
        reply = call(args.via, "POST", f"/sessions/{session}{api.path}", body, PATIENCE)
        if reply.status != 200:
            check(f"{name}: turn {at}", [f"status {reply.status}: {reply.body[:300]}"])
            return
        replies.append(api.streamed(events(reply)) if stream else api.whole(reply.json()))
        history += replies[-1].history
    faults = answer(call(args.control, "GET", f"/v1/sessions/{session}"))["faults"]
    rows, refused = exported(args.control, session)
    check(f"{name}: all turns are trained, in one path", differ("faults", faults, {}) + differ("refused rows", refused, {})
          + differ("turns of the rows", [[turn["trained"] for turn in row["turns"]] for row in rows], [[True] * len(SIZES)]),
          f"causes {sorted({turn['cause'] for row in rows for turn in row['turns']})}")
    if faults or len(rows) != 1:
        return
    compare(args, weights, name, rows[0], pictures, replies, logged)


def compare(args, weights, name, row, pictures, replies, logged):
    ids = row["token_ids"]
    responses = [(segment["start"], segment["end"]) for segment in row["segments"] if segment["kind"] == "response"]
    engine = [json.loads(line) for line in Path(args.log).read_text().splitlines()[logged:]]
    check(f"{name}: prompts are the engine's", [f"the prompt of turn {at} is not in its log" for at, (start, _) in enumerate(responses)
                                                if ids[:start] not in engine]
          + differ("the first prompt, by transformers", ids[:responses[0][0]], first_prompt(weights, pictures[:2]))
          + differ("prompt tokens of the replies", [reply.prompt for reply in replies], [start for start, _ in responses])
          + [d for reply, (start, end) in zip(replies, responses, strict=True) if reply.ids
             for d in differ("ids of the reply", reply.ids, (ids[:start], ids[start:end]))])
    decode = weights.processor.tokenizer.decode
    check(f"{name}: sampled tokens are the text", differ("texts", [reply.text for reply in replies],
                                                         [decode(ids[start:end], skip_special_tokens=True) for start, end in responses]))

    spans = [(image["start"], image["end"]) for image in row["images"]]
    sent, at = [], 0
    for start, end in [*spans, (len(ids), len(ids))]:
        sent += ids[at:start] + [weights.pad] * (start < end)
        at = end
    check(f"{name}: tokens of {len(pictures)} pictures", differ("spans", (ids, spans), weights.expand(sent, pictures))
          + differ("hashes", [image["sha256"] for image in row["images"]], list(map(digest, pictures)))
          + differ("bytes", list(map(base64.b64decode, row["image_data"])), pictures))
    differences, greedy = [], 0
    for turn, (start, end) in enumerate(responses):
        if row["turns"][turn]["sampling"]["temperature"] == 0.0:
            before, greedy = sum(span_end <= start for _, span_end in spans), greedy + 1
            # positions in the ids that are not expanded
            prompt = sent[:start - sum(span_end - span_start - 1 for span_start, span_end in spans[:before])]
            body = {"input_ids": prompt, "image_data": list(map(data_uri, pictures[:before])), "return_prompt_token_ids": True,
                    "sampling_params": {"max_new_tokens": 12, "temperature": 0.0}}
            direct = answer(generate(args.direct, body, PATIENCE))
            differences += differ(f"turn {turn}: the echo", direct["prompt_token_ids"], ids[:start])
            differences += differ(f"turn {turn}: greedy tokens", ids[start:end], direct["output_ids"])
    check(f"{name}: {greedy} greedy replies of a direct call", differences)
    truth = Truth(weights)
    truth.add(row, pictures)
    truth.check(name)


def warm_up(args):
    """Pictures are served from tokens once tokentap has asked the engine for one, and the first one of a server takes up to a minute."""
    until, api = time.monotonic() + 120, Chat()
    while time.monotonic() < until:
        session = f"first-{secrets.token_hex(4)}"
        body = api.body([api.user("Hello.", screenshot(SIZES[1], 0))])
        answer(call(args.via, "POST", f"/sessions/{session}{api.path}", body, PATIENCE))
        if not answer(call(args.control, "GET", f"/v1/sessions/{session}"))["faults"]:
            return


def main():
    parser = argparse.ArgumentParser()
    for name in ("direct", "via", "control", "model", "log"):
        parser.add_argument(f"--{name}", required=True)
    args = parser.parse_args()
    weights = Weights(args.model)
    warm_up(args)
    for api in (Chat(), Messages(), Responses(), StoredResponses()):
        for stream in (False, True):
            conversation(args, weights, api, stream)
    print(f"{len(failed)} failed" if failed else "all checks passed")
    sys.exit(bool(failed))


main()
