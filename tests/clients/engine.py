# SPDX-License-Identifier: Apache-2.0
"""A fake SGLang server: it answers `/generate` with the text that a script returns for the prompt.

It needs only the standard library. It uses the ids of a byte-level BPE tokenizer, but splits a text into other tokens
than the tokenizer would, as a model may sample them. A prompt that was tokenised again therefore has other ids. With
the tokenizer of a vision model it takes pictures, and refuses a prompt that has not one placeholder for each.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import math
import re
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import vision

CONTEXT_TOKENS = 1 << 18


class Tokenizer:
    """Loads a tokenizer.json of byte-level BPE, and encodes text into other tokens than that tokenizer would."""

    def __init__(self, folder: Path) -> None:
        read = json.loads((folder / "tokenizer.json").read_text())
        letters = byte_letters()
        self.bytes_of = {i: bytes(letters[c] for c in token) for token, i in read["model"]["vocab"].items()}
        self.id_of = {token: i for i, token in self.bytes_of.items()}
        self.added = {token["content"]: token["id"] for token in read["added_tokens"]}
        self.special = {token["id"] for token in read["added_tokens"] if token["special"]}
        self.bytes_of |= {i: text.encode() for text, i in self.added.items()}
        self.split = re.compile("(" + "|".join(map(re.escape, self.added)) + ")")
        self.longest = max(map(len, self.id_of))
        self.size = max(self.bytes_of) + 1
        self.end = self.added["<|im_end|>"]
        # None: the model has no vision
        self.placeholder = self.added.get(vision.PLACEHOLDER)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for part in self.split.split(text):
            ids += [self.added[part]] if part in self.added else self.pieces(part.encode())
        return ids

    def pieces(self, data: bytes) -> Iterator[int]:
        at = count = 0
        while at < len(data):
            lengths = range(min(self.longest, len(data) - at), 0, -1)
            fits = [n for n in lengths if data[at : at + n] in self.id_of]
            # every third token is a single byte
            length = fits[-1] if count % 3 == 2 else fits[0]
            yield self.id_of[data[at : at + length]]
            at, count = at + length, count + 1

    def decode(self, ids: list[int], special: bool = True) -> bytes:
        return b"".join(self.bytes_of[i] for i in ids if special or i not in self.special)


def byte_letters() -> dict[str, int]:
    """The byte of each character that byte-level BPE uses for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + at): b for at, b in enumerate(others)}


def instance(schema: dict[str, Any]) -> Any:
    """A value of this schema, as a grammar would make the model sample it."""
    if "enum" in schema:
        return schema["enum"][0]
    if "anyOf" in schema:
        return instance(schema["anyOf"][0])
    match schema["type"]:
        case "object":
            return {name: instance(schema["properties"][name]) for name in schema.get("required", [])}
        case "array":
            return [instance(schema["items"])]
        case "integer":
            return 3
        case "string":
            return "你好 こんにちは 🌧"
        case other:
            raise NotImplementedError(other)


@dataclass(frozen=True)
class Distribution:
    """A geometric distribution: the token at rank n, from 0, has the probability (1 - ratio) * ratio^n.

    Its mass beyond a vocabulary of a thousand tokens is below 1e-20.
    """

    ratio: float
    # the rank of the sampled token
    rank: int

    @classmethod
    def of(cls, position: int, token: int) -> Distribution:
        """The distribution from which `token` was sampled at this position."""
        return cls(0.5 + (position * 7 + token) % 45 / 100, (position + token) % 3)

    def logprob(self, rank: int) -> float:
        return math.log(1 - self.ratio) + rank * math.log(self.ratio)


@dataclass(frozen=True)
class Picture:
    """A picture of a prompt: the SHA-256 of its bytes, and the range of its tokens."""

    sha256: str
    start: int
    end: int


class RefusedError(Exception):
    """A request gets a 400 with this text."""


@dataclass(frozen=True)
class Call:
    """One generation: its prompt with its pictures, the sampled ids, and for each of these its distribution."""

    # as many placeholders for each picture as it has tokens
    prompt: list[int]
    pictures: list[Picture]
    sampled: list[int]
    distributions: list[Distribution]
    # the number of logprobs in each row of the reply; 0 without rows
    top: int


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *args: Any) -> None:
        """Prints an error, unless tokentap has closed the connection: it does so with a probe that it repeats."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(*args)


class Engine:
    """Listens on 127.0.0.1 at a free port; `script` maps a decoded prompt to the text of the reply."""

    def __init__(self, tokenizer: Tokenizer, script: Callable[[str], str]) -> None:
        self.tokenizer = tokenizer
        self.script = script
        self.calls: list[Call] = []
        handler = type("BoundHandler", (Handler,), {"engine": self})
        self.server = Server(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def sample(self, request: dict[str, Any]) -> tuple[Call, dict[str, Any]]:
        """The generation and its finish reason."""
        params = request.get("sampling_params") or {}
        prompt, pictures = self.expand(request["input_ids"], request.get("image_data") or [])
        if schema := params.get("json_schema"):
            text = json.dumps(instance(json.loads(schema)))
        else:
            text = self.script(self.tokenizer.decode(request["input_ids"]).decode(errors="replace"))
        sampled = [*self.tokenizer.encode(text), self.tokenizer.end]
        finish: dict[str, Any] = {"type": "stop", "matched": self.tokenizer.end}
        stops = params.get("stop") or []
        for stop in [stops] if isinstance(stops, str) else stops:
            for count in range(1, len(sampled)):
                if stop.encode() in self.tokenizer.decode(sampled[:count]):
                    sampled, finish = sampled[:count], {"type": "stop", "matched": stop}
                    break
        most = params.get("max_new_tokens") or CONTEXT_TOKENS
        if len(sampled) > most:
            sampled, finish = sampled[:most], {"type": "length", "length": most}
        of = [Distribution.of(at, token) for at, token in enumerate(sampled, len(prompt))]
        top = request.get("top_logprobs_num") or 0 if request.get("return_logprob") else 0
        call = Call(prompt, pictures, sampled, of, top)
        self.calls.append(call)
        return call, finish

    def expand(self, ids: list[int], items: list[str]) -> tuple[list[int], list[Picture]]:
        """The prompt with the tokens of its pictures in place of the placeholders."""
        placeholder = self.tokenizer.placeholder
        count = sum(token == placeholder for token in ids)
        if count != len(items):
            raise RefusedError(f"{count} placeholders and {len(items)} pictures")
        prompt: list[int] = []
        pictures: list[Picture] = []
        for token in ids:
            start = len(prompt)
            if token == placeholder:
                content = decoded(items[len(pictures)])
                prompt += [token] * vision.tokens(content)
                pictures.append(Picture(hashlib.sha256(content).hexdigest(), start, len(prompt)))
            else:
                prompt.append(token)
        return prompt, pictures

    def row(self, token: int, of: Distribution, top: int) -> list[tuple[float, int, None]]:
        """The `top` largest logprobs. The tokens beside the sampled one are those with the next ids."""
        ids = [(token + step) % self.tokenizer.size for step in range(1, top)]
        ids.insert(of.rank, token)
        return [(of.logprob(rank), i, None) for rank, i in enumerate(ids[:top])]

    def event(self, request: dict[str, Any], call: Call, new: slice, text: str, **meta: Any) -> dict[str, Any]:
        """An event with the tokens `new` of the call."""
        ids = call.sampled[new]
        meta |= {"id": request.get("rid") or "none", "prompt_tokens": len(call.prompt)}
        meta |= {"weight_version": "scripted", "cached_tokens": 0}
        if call.pictures:
            meta["image_tokens"] = sum(picture.end - picture.start for picture in call.pictures)
        if request.get("return_logprob"):
            pairs = list(zip(ids, call.distributions[new], strict=True))
            meta["output_token_logprobs"] = [(of.logprob(of.rank), i, None) for i, of in pairs]
            meta["input_token_logprobs"] = []
            if call.top:
                rows = [self.row(i, of, call.top) for i, of in pairs]
                meta["output_top_logprobs"], meta["input_top_logprobs"] = rows, []
        event = {"text": text, "output_ids": ids, "meta_info": meta}
        return event | ({"prompt_token_ids": call.prompt} if request.get("return_prompt_token_ids") else {})

    def whole(self, request: dict[str, Any]) -> dict[str, Any]:
        call, finish = self.sample(request)
        text, count = self.text(call.sampled, finish), len(call.sampled)
        return self.event(request, call, slice(None), text, completion_tokens=count, finish_reason=finish)

    def text(self, ids: list[int], finish: dict[str, Any]) -> str:
        text = self.tokenizer.decode(ids, special=False).decode(errors="ignore")
        matched = finish.get("matched")
        return text[: text.index(matched)] if isinstance(matched, str) else text

    def stream(self, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
        """An incremental stream with three tokens per event; texts end at complete characters."""
        call, finish = self.sample(request)
        return self.events(request, call, finish)

    def events(self, request: dict[str, Any], call: Call, finish: dict[str, Any]) -> Iterator[dict[str, Any]]:
        ids = call.sampled
        whole, sent = self.text(ids, finish), 0
        for start in range(0, len(ids), 3):
            new, count = slice(start, start + 3), min(start + 3, len(ids))
            last = count == len(ids)
            text = self.tokenizer.decode(ids[:count], special=False).decode(errors="ignore")
            text = whole if last else text[: len(whole)]
            reason = finish if last else None
            yield self.event(request, call, new, text[sent:], completion_tokens=count, finish_reason=reason)
            sent = len(text)


def decoded(item: Any) -> bytes:
    """The bytes of a data URI."""
    kind, comma, content = item.partition(",") if isinstance(item, str) else ("", "", "")
    if not (comma and kind.startswith("data:image/") and kind.endswith(";base64")):
        raise RefusedError(f"no data URI of a picture: {str(item)[:80]}")
    try:
        return base64.b64decode(content, validate=True)
    except binascii.Error as error:
        raise RefusedError(f"no base64: {error}") from error


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    engine: Engine

    def log_message(self, *args: Any) -> None:
        pass

    def answer(self, status: int, body: Any) -> None:
        data = json.dumps(body).encode()
        self.send_response_only(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        name = "scripted"
        facts = {
            "/health": {},
            "/model_info": {
                "model_path": name,
                "served_model_name": name,
                "tokenizer_path": name,
                "is_generation": True,
                "preferred_sampling_params": None,
                "weight_version": name,
            },
            "/server_info": {
                "model_path": name,
                "served_model_name": name,
                "version": name,
                "context_length": CONTEXT_TOKENS,
                "incremental_streaming_output": True,
                "skip_tokenizer_init": False,
                "sampling_defaults": "openai",
                "disaggregation_mode": "null",
                "speculative_algorithm": None,
            },
            "/v1/models": {
                "object": "list",
                "data": [{"id": name, "object": "model", "owned_by": name, "max_model_len": CONTEXT_TOKENS}],
            },
        }
        if self.path in facts:
            self.answer(200, facts[self.path])
        else:
            self.answer(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        if self.path == "/abort_request":
            return self.answer(200, {})
        if self.path != "/generate":
            return self.answer(404, {"detail": "Not Found"})
        request = json.loads(body)
        size = self.engine.tokenizer.size
        params = request.get("sampling_params") or {}
        if any(int(token) >= size for token in params.get("logit_bias") or {}):
            return self.answer(400, {"error": {"message": f"logit_bias must has keys in [0, {size - 1}]"}})
        if request.get("return_sampling_mask") or (request.get("stream") and params.get("n", 1) > 1):
            return self.answer(400, {"error": {"message": "not supported by the scripted engine"}})
        try:
            if request.get("stream"):
                return self.stream(self.engine.stream(request))
            replies = [self.engine.whole(request) for _ in range(params.get("n", 1))]
        except RefusedError as error:
            return self.answer(400, {"error": {"message": str(error)}})
        return self.answer(200, replies[0] if len(replies) == 1 else replies)

    def stream(self, events: Iterator[dict[str, Any]]) -> None:
        self.send_response_only(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        for event in [*(json.dumps(event) for event in events), "[DONE]"]:
            data = f"data: {event}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.write(b"0\r\n\r\n")
