# SPDX-License-Identifier: Apache-2.0
"""Processes of the test: starts each on free ports, waits until it is ready, and stops it."""

import json
import pathlib
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request


class Answer:
    """A complete reply."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def events(self):
        """The JSON of each event of a stream."""
        data = [line[6:] for line in self.body.decode().split("\n\n") if line.startswith("data: ")]
        return [json.loads(item) for item in data if item != "[DONE]"]


def ask(url, body=None, headers=None, timeout=30):
    """Sends a POST with this JSON, or a GET without a body."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json", **(headers or {})})
    try:
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return Answer(reply.status, reply.headers, reply.read())
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.headers, error.read())


def until(what, condition, seconds=30):
    """Waits until a condition is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise SystemExit(f"never happened: {what}")


def free_ports(count):
    """Ports that were free a moment ago. The router gets one of them, because it does not report the port it chose for port 0."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


class Processes:
    """The started processes; `end` stops them in reverse order."""

    def __init__(self, tokentap, work):
        self.tokentap, self.work, self.running = tokentap, pathlib.Path(work), []

    def start(self, name, command):
        """Starts a process whose output goes to a file of that name."""
        log = self.work / name
        with log.open("wb") as out:
            self.running.append(subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT))
        return log

    def demo(self, name, *flags):
        """`tokentap demo`: its engine, data port and control port."""
        log = self.start(name, [self.tokentap, "demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", *flags])
        upstream = re.compile(r'the upstream answers.*upstream="?(http://[0-9.:]+)')
        # either may come first
        text = until(f"{name} is ready", lambda: "Metrics:" in (text := log.read_text()) and upstream.search(text) and text)
        engine = upstream.search(text)[1]
        data = re.search(r"curl -s (http://[0-9.:]+)/generate", text)[1]
        control = re.search(r"Metrics: (http://[0-9.:]+)/metrics", text)[1]
        return engine, data, control

    def serve(self, name, upstream, *flags):
        """`tokentap serve`: its data port and control port, and its log."""
        ports = ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log-format", "json"]
        log = self.start(name, [self.tokentap, "serve", "--upstream", upstream, *ports, *flags])
        text = until(f"{name} is ready", lambda: "has been probed" in log.read_text() and log.read_text())
        lines = [json.loads(line) for line in text.splitlines()]
        line = next(line for line in lines if line["message"] == "tokentap listens")
        return line["data"], line["control"], log

    def router(self, name, workers, *flags):
        """sglang-router in front of these workers."""
        port, metrics = free_ports(2)
        command = [sys.executable, "-m", "sglang_router.launch_router", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(metrics), "--disable-retries", *flags, "--worker-urls", *workers]
        log = self.start(name, command)
        url = f"http://127.0.0.1:{port}"

        def listed():
            if self.running[-1].poll() is not None:
                raise SystemExit(f"{name} ended:\n{log.read_text()}")
            try:
                found = ask(f"{url}/workers").json()["workers"]
            except OSError:
                return False
            return len(found) == len(workers) and all(worker["is_healthy"] for worker in found)

        until(f"{name} lists its workers", listed, 60)
        return url

    def check(self, upstream, *flags):
        """The output of `tokentap check`."""
        done = subprocess.run([self.tokentap, "check", "--upstream", upstream, *flags], stdout=subprocess.PIPE, text=True, timeout=60)
        return done.stdout

    def end(self):
        for process in reversed(self.running):
            process.terminate()
        for process in self.running:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
