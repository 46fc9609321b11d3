# SPDX-License-Identifier: Apache-2.0
"""Sends a round of requests of many kinds to a tokentap each second, so that as many of its metrics as a demo allows are counted."""

import argparse
import http.client
import json
import socket
import struct
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--control", required=True)
parser.add_argument("--recorded", required=True, help="data port of the tokentap in front of recorded.py")
parser.add_argument("--seconds", type=float, required=True)
args = parser.parse_args()


def post(path: str, body: object, port: str = args.data, **headers: str) -> tuple[int, bytes]:
    sent = body if isinstance(body, bytes) else json.dumps(body).encode()
    kind = "application/octet-stream" if isinstance(body, bytes) else "application/json"
    request = urllib.request.Request(f"http://{port}{path}", sent, {"content-type": kind, **headers})
    try:
        with urllib.request.urlopen(request, timeout=30) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def sampling(tokens: int = 32, **others: object) -> dict:
    return {"sampling_params": {"max_new_tokens": tokens, "temperature": 0.8, "ignore_eos": True, **others}}


def expect(status: int, answer: tuple[int, bytes]) -> dict:
    assert answer[0] == status, answer
    return json.loads(answer[1]) if answer[1][:1] == b"{" else {}


def leave(session: str, body: dict) -> None:
    """Requests a long stream and disconnects after its first bytes."""
    host, port = args.data.rsplit(":", 1)
    sent = json.dumps(body).encode()
    with socket.create_connection((host, int(port)), timeout=30) as connection:
        head = f"POST /sessions/{session}/generate HTTP/1.1\r\nhost: {args.data}\r\ncontent-type: application/json\r\n"
        connection.sendall(f"{head}content-length: {len(sent)}\r\n\r\n".encode() + sent)
        assert connection.recv(64)


def truncated_stream(session: str) -> None:
    """Reads a stream that the engine truncates."""
    body = {"input_ids": [1, 2, 3], "stream": True, **sampling(16)}
    try:
        answer = post(f"/sessions/{session}/generate", body, args.recorded)
    except http.client.IncompleteRead:
        return
    raise AssertionError(f"a truncated stream looked complete: {answer}")


def rows(count: int, width: int) -> bytes:
    """A safetensors file of logits."""
    header = {"logits": {"dtype": "F32", "shape": [count, width], "data_offsets": [0, 4 * count * width]}}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + struct.pack(f"<{width}f", *(i % 7 for i in range(width))) * count


def converse(session: str) -> None:
    """Two turns in sequence, two more samples of the first, a prompt that ends with <think>, and an edited history, which branches."""
    prompt = [299, 467]
    generate = f"/sessions/{session}/generate"
    sampled = expect(200, post(generate, {"input_ids": prompt, **sampling()}))["output_ids"]
    expect(200, post(generate, {"input_ids": [*prompt, *sampled, 258], **sampling()}))
    expect(200, post(generate, {"input_ids": prompt, **sampling(n=2)}))
    # the prompt ends with <think>
    expect(200, post(generate, {"input_ids": [*prompt, 1020], **sampling()}))
    expect(200, post(generate, {"input_ids": [*prompt, *sampled[:5], 94, *sampled[6:]], **sampling()}))


def chat(session: str) -> None:
    """A chat of two turns; the third exceeds --chat-limits and is refused."""
    messages = [{"role": "user", "content": "Is the lamp lit?"}]
    for status in (200, 200, 403):
        answer = expect(status, post(f"/sessions/{session}/v1/chat/completions", {"messages": messages, "max_tokens": 8}))
        if status == 200:
            reply = {"role": "assistant", "content": answer["choices"][0]["message"]["content"]}
            messages += [reply, {"role": "user", "content": "And now?"}]


def one_round(number: int, crowd: ThreadPoolExecutor) -> None:
    session = f"s{number}"
    converse(session)
    # tokentap counts the drift of one in a hundred turns, which a slow machine must reach as well
    for conversation in range(10):
        chat(f"chat-{number}-{conversation}")
    expect(200, post("/generate", {"text": "The lamp", "stream": True, **sampling()}))
    expect(200, post("/generate", {"text": "The lamp", "entropy_options": {"estimator": "lower"}, **sampling()}))
    # without a finite top_k this estimator has no number
    expect(200, post("/generate", {"text": "The lamp", "entropy_options": {"estimator": "sampled"}, **sampling()}))
    # the engine rejects it, with forced logprobs and unchanged
    expect(400, post("/generate", {"text": "The lamp", **sampling(temperature=-1)}))
    # tokentap rejects it
    expect(400, post("/generate", {"input_ids": [-1], **sampling()}))
    away = {"text": "In the morning", "stream": True, **sampling(2000)}
    leave(session, away)
    away["sampling_params"]["max_new_tokens"] = 64
    leave(session, away)
    post(f"/sessions/{session}/generate", away, **{"x-stainless-retry-count": "1"})
    expect(200, post("/v1/entropy", rows(64, 8192), args.control))
    # forwarded without capturing its tokens
    forwarded = {"model": "tiny", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}
    expect(200, post("/v1/chat/completions", forwarded, args.recorded))
    truncated_stream(session)
    # more concurrent requests than --max-requests
    answers = crowd.map(lambda _: post("/generate", {"text": "The lamp", **sampling(64)}), range(12))
    statuses = [status for status, _ in answers]
    assert set(statuses) <= {200, 503}, statuses


with ThreadPoolExecutor(12) as crowd:
    end = time.monotonic() + args.seconds
    number = 0
    while time.monotonic() < end:
        began = time.monotonic()
        one_round(number, crowd)
        number += 1
        time.sleep(max(0.0, 1 - (time.monotonic() - began)))
