# SPDX-License-Identifier: Apache-2.0
"""Sends generations through `tokentap demo --otlp`, and reads what a real collector received from its log: check.py TOKENTAP"""

import concurrent.futures
import json
import pathlib
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request

import rotel

COLLECTOR = pathlib.Path(rotel.__file__).parent / "rotel-agent"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
# more generations than the queue and the requests in flight have room for
FLOOD = 6000
CLIENTS = 8
# the longest time of a generation, in ms, on a busy machine
LONGEST = 900


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Process:
    """A process whose output goes to a file."""

    def __init__(self, command: list[str], log: pathlib.Path) -> None:
        self.log = log
        with log.open("w") as out:
            self.child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    def text(self) -> str:
        return re.sub(r"\x1b\[[0-9;]*m", "", self.log.read_text())

    def await_text(self, pattern: str, count: int = 1) -> list[str]:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            found = re.findall(pattern, self.text())
            if len(found) >= count:
                return found
            if self.child.poll() is not None:
                break
            time.sleep(0.05)
        sys.exit(f"{self.text()}\nno text like {pattern} {count} times")

    def end(self) -> int:
        self.child.send_signal(signal.SIGTERM)
        return self.child.wait(timeout=30)


def post(url: str, body: dict, headers: dict[str, str] | None = None) -> bytes:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json", **(headers or {})})
    with urllib.request.urlopen(request, timeout=30) as reply:
        return reply.read()


def spans(control: str) -> dict[str, int]:
    with urllib.request.urlopen(f"{control}/metrics", timeout=30) as reply:
        text = reply.read().decode()
    return {name: int(value) for name, value in re.findall(r'tokentap_spans_total\{outcome="(\w+)"\} (\d+)', text)}


def until_counted(control: str, total: int) -> dict[str, int]:
    """The counts of spans, once they add up."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        counts = spans(control)
        if sum(counts.values()) >= total:
            return counts
        time.sleep(0.1)
    sys.exit(f"{total} spans are not counted: {spans(control)}")


def generate(data: str) -> float:
    """The time of a generation of one token, in ms."""
    began = time.perf_counter()
    post(f"{data}/generate", {"text": "The lamp", "sampling_params": {"max_new_tokens": 1}})
    return (time.perf_counter() - began) * 1000


def flood(data: str, count: int) -> tuple[float, float]:
    """The median and the longest time of generations from several clients, in ms."""
    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        times = list(pool.map(lambda _: generate(data), range(count)))
    return statistics.median(times), max(times)


def received(text: str) -> dict[str, dict[str, str]]:
    """The spans in the collector's log by request id: their attributes, and their own ids."""
    found = {}
    for span in re.split(r"Span #\d+\n", text)[1:]:
        pairs = dict(re.findall(r" +-> (\S+): \w+\((.*)\)", span))
        pairs |= dict(re.findall(r" +(Trace ID|Parent ID|Name) +: (\S.*)?", span))
        found[pairs["gen_ai.response.id"]] = pairs
    return found


def expect(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        sys.exit(f"{what}: {got!r} instead of {wanted!r}")
    print(f"{what}: {got}")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run(pathlib.Path(folder))


def collector_command(folder: pathlib.Path, port: int) -> list[str]:
    files = ["--pid-file", str(folder / "pid"), "--log-file", str(folder / "agent.log")]
    ports = ["--otlp-http-endpoint", f"127.0.0.1:{port}", "--otlp-grpc-endpoint", f"127.0.0.1:{free_port()}"]
    return [str(COLLECTOR), "start", *files, *ports, "--exporter", "blackhole", "--debug-log", "traces", "--debug-log-verbosity", "detailed"]


def run(folder: pathlib.Path) -> None:
    port = free_port()
    collector = Process(collector_command(folder, port), folder / "collector")
    collector.await_text("Starting Rotel")
    flags = ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--otlp", f"http://127.0.0.1:{port}"]
    demo = Process([sys.argv[1], "demo", *flags], folder / "demo")
    data = demo.await_text(r"(http://[0-9.:]+)/generate")[0]
    control = demo.await_text(r"(http://[0-9.:]+)/metrics")[0]

    body = {"text": "The lamp", "rid": "whole", "session_id": "evening", "sampling_params": {"max_new_tokens": 5}}
    meta = json.loads(post(f"{data}/generate", body, {"traceparent": f"00-{TRACE}-{PARENT}-01"}))["meta_info"]
    post(f"{data}/generate", {**body, "rid": "streamed", "stream": True})
    chat = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "Where is the lamp?"}]}
    post(f"{data}/v1/chat/completions", chat)
    collector.await_text(r"gen_ai\.operation\.name", 3)
    found = received(collector.text())
    whole = found["whole"]
    expect("trace and parent", (whole["Trace ID"], whole["Parent ID"]), (TRACE, PARENT))
    expect("session", whole["gen_ai.conversation.id"], "evening")
    expect("sampled tokens", whole["gen_ai.usage.output_tokens"], str(meta["completion_tokens"]))
    entropy = meta["output_token_entropy"]
    expect("mean entropy", round(float(whole["tokentap.entropy.mean"]), 6), round(sum(entropy) / len(entropy), 6))
    expect("streamed", found["streamed"]["gen_ai.usage.output_tokens"], "5")
    expect("chat", sum(span["gen_ai.operation.name"] == "chat" for span in found.values()), 1)

    usual, _ = flood(data, 500)

    def expect_no_wait(what: str, median: float, longest: float) -> None:
        print(f"collector {what}: a generation took {median:.1f} ms, at most {longest:.0f}; {usual:.1f} ms before")
        # a request to the collector ends after ten seconds, and an attempt follows after one
        if median > 3 * usual or longest > LONGEST:
            sys.exit("generations wait for the collector")

    expect("all are sent", until_counted(control, 503), {"dropped": 0, "failed": 0, "sent": 503})
    collector.child.send_signal(signal.SIGSTOP)
    expect_no_wait("silent", *flood(data, FLOOD))
    dropped = spans(control)["dropped"]
    collector.child.send_signal(signal.SIGCONT)
    counts = until_counted(control, 503 + FLOOD)
    print(f"{dropped} of {FLOOD} spans dropped; then {counts}")
    if not dropped:
        sys.exit("the queue was never full")
    collector.end()
    expect_no_wait("ended", *flood(data, 1500))
    expect("the demo ends", demo.end(), 0)


main()
