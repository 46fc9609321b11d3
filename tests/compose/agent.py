# SPDX-License-Identifier: Apache-2.0
"""Continues sessions through a load balancer without stickiness, and compares what each replica has. See run.sh."""

import argparse
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request

TURNS = 9
PATIENCE = 30

parser = argparse.ArgumentParser()
parser.add_argument("--data", required=True)
parser.add_argument("--control", required=True)
parser.add_argument("--replicas", nargs=3, required=True)
parser.add_argument("--kill", type=int, required=True, help="the process of the second replica, which is killed in between")
parser.add_argument("--tokentap", required=True)
parser.add_argument("--archive", required=True)
args = parser.parse_args()


def call(url: str, body: dict | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://{url}", data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read()


def until(what: str, condition) -> None:
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE, f"not within {PATIENCE} s: {what}"
        time.sleep(0.1)


def answers(url: str) -> bool:
    try:
        call(url)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def retried(url: str, body: dict) -> bytes:
    """Repeats a call after a 502 or 503, as the SDKs do. The load balancer repeats no request that it has sent."""
    for _ in range(3):
        try:
            return call(url, body)
        except urllib.error.HTTPError as error:
            if error.code not in (502, 503):
                raise
            refused.append(error.code)
    return call(url, body)


def turn(session: str, messages: list[dict], number: int) -> None:
    messages.append({"role": "user", "content": f"How far does light {number} go?"})
    body = {"model": "demo", "messages": messages, "max_tokens": 24, "seed": number}
    reply = json.loads(retried(f"{args.data}/sessions/{session}/v1/chat/completions", body))
    messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})


def counter(replica: str, name: str) -> int:
    lines = call(f"{replica}:30002/metrics").decode().splitlines()
    return sum(int(float(line.split()[1])) for line in lines if line.split()[0] == f"tokentap_{name}")


def state(replica: str, session: str) -> tuple[int, dict]:
    found = json.loads(call(f"{replica}:30002/v1/sessions/{session}"))
    return found["turns"], found["causes"]


def samples(replica: str, session: str) -> bytes:
    return call(f"{replica}:30002/v1/samples", {"sessions": [session], "format": "jsonl"})


until("the load balancer reaches a replica", lambda: answers(f"{args.data}/model_info") and answers(f"{args.control}/livez"))
until("all replicas share sessions", lambda: all(answers(f"{replica}:30002/readyz") for replica in args.replicas))

messages: list[dict] = []
refused: list[int] = []
for number in range(TURNS):
    turn("hops", messages, number)
assert not refused, f"all replicas ran, but a call was answered {refused}"
served = [counter(replica, "ledger_turns_confirmed_total") for replica in args.replicas]
assert sum(served) == TURNS, f"{TURNS} turns, but the replicas confirmed {served}"
assert all(served), f"a replica served nothing, so no session has moved: {served}"
for replica in args.replicas:
    turns, causes = state(replica, "hops")
    assert turns == TURNS, f"{replica} has {turns} of {TURNS} turns"
    assert set(causes) <= {"first", "extends", "extends_length"}, f"{replica}: a turn did not continue the session: {causes}"
exports = {samples(replica, "hops") for replica in args.replicas}
assert len(exports) == 1, "the replicas export different bytes"
print(f"a session of {TURNS} turns moved between replicas {served} and continued; three equal exports of {len(exports.pop())} bytes")

os.kill(args.kill, signal.SIGKILL)
left = [args.replicas[0], args.replicas[2]]
# The balancer notices it after two checks. Before that, a connection that is refused goes to another replica.
for number in range(TURNS, 2 * TURNS):
    turn("hops", messages, number)
for replica in left:
    turns, causes = state(replica, "hops")
    assert turns == 2 * TURNS, f"{replica} has {turns} of {2 * TURNS} turns after a replica was killed"
    assert set(causes) <= {"first", "extends", "extends_length"}, f"{replica}: a turn did not continue the session: {causes}"
assert len({samples(replica, "hops") for replica in left}) == 1, "the replicas export different bytes"
print(f"a replica was killed: the session continued to {2 * TURNS} turns; {len(refused)} calls were answered 502 or 503 and repeated")


def archived() -> str:
    """What `tokentap archive verify` prints."""
    command = [args.tokentap, "archive", "verify", args.archive]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


call(f"{left[1]}:30002/v1/sessions/hops/freeze", {})
until("the archive has the session", lambda: ", 1 rows, " in archived())
print(f"the session was frozen; the archive has it: {archived().strip()}")
