# SPDX-License-Identifier: Apache-2.0
"""Processes of a fleet: starts, pauses, kills and restarts each by its pid."""

import asyncio
import pathlib
import re
import signal
import socket
import subprocess
import time


def free_port():
    """A port that was free a moment ago. Valkey needs a known port, so that it can be restarted on it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


async def until(what, condition, seconds=30):
    """Waits until a condition is true, and returns its value."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            found = await condition()
        except (OSError, asyncio.TimeoutError, ServerError, asyncio.IncompleteReadError):
            found = None
        if found:
            return found
        await asyncio.sleep(0.1)
    raise TimeoutError(f"never happened: {what}")


class ServerError(Exception):
    """An error reply of Valkey."""


class Process:
    """A child process with a log file, in a network namespace or on loopback."""

    def __init__(self, name, work, node=None):
        self.name, self.work, self.child, self.is_stopped = name, pathlib.Path(work), None, False
        self.node, self.host = node, node.host if node else "127.0.0.1"
        self.log = self.work / f"{name}.log"

    def spawn(self, command):
        with self.log.open("ab") as out:
            # `ip netns exec` becomes the command, so the child has its pid
            command = [str(part) for part in [*(self.node.command if self.node else []), *command]]
            self.child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)

    @property
    def is_running(self):
        return self.child is not None and self.child.poll() is None

    def send(self, number):
        if self.is_running:
            self.child.send_signal(number)

    def stop(self):
        self.is_stopped = True
        self.send(signal.SIGSTOP)

    def go_on(self):
        self.is_stopped = False
        self.send(signal.SIGCONT)

    def kill(self):
        self.is_stopped = False
        if self.child is not None:
            self.child.kill()
            self.child.wait()

    async def end(self, seconds=15):
        """Ends the process in an orderly way."""
        self.go_on()
        self.send(signal.SIGTERM)
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
        self.kill()


class Server(Process):
    """A Valkey or Redis server, also as a Sentinel."""

    def __init__(self, name, work, binary, flags=(), tls=None, config=None, node=None):
        super().__init__(name, work, node)
        self.binary, self.flags, self.tls, self.port = binary, list(flags), tls, 7000 if node else free_port()
        self.home, self.config = self.work / f"{name}.data", config
        self.home.mkdir()

    async def start(self):
        command = [self.binary]
        if self.config is not None:
            # Sentinel rewrites its file
            path = self.home / "sentinel.conf"
            if not path.exists():
                path.write_text(f"port {self.port}\nbind {self.host}\n{self.config}")
            command += [path, "--sentinel"]
        else:
            command += ["--bind", self.host, "--protected-mode", "no", "--dir", self.home]
            command += ["--save", "", "--appendonly", "yes", "--appendfsync", "always"]
            command += ["--maxmemory-policy", "noeviction", "--repl-diskless-sync-delay", "0"]
            if self.tls:
                command += ["--port", "0", "--tls-port", self.port, "--tls-auth-clients", "no"]
                command += ["--tls-cert-file", self.tls / "server.pem", "--tls-key-file", self.tls / "server.key"]
                command += ["--tls-ca-cert-file", self.tls / "ca.pem"]
            else:
                command += ["--port", self.port]
            command += self.flags
        self.spawn(command)
        await until(f"{self.name} answers", self.answers)

    async def answers(self):
        return await self.ask("PING") == "PONG"

    def forget(self):
        """Removes the data of a server that does not run."""
        for path in sorted(self.home.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()

    async def ask(self, *words, seconds=3):
        """Sends a command on a new connection, and returns the reply."""
        return await asyncio.wait_for(self._ask(words), seconds)

    async def _ask(self, words):
        context = None
        if self.tls:
            import ssl

            context = ssl.create_default_context(cafile=str(self.tls / "ca.pem"))
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=context)
        try:
            parts = [str(word).encode() for word in words]
            writer.write(b"*%d\r\n" % len(parts) + b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts))
            return await self._reply(reader)
        finally:
            writer.close()

    async def _reply(self, reader):
        line = (await reader.readuntil(b"\r\n"))[:-2].decode()
        kind, rest = line[0], line[1:]
        if kind == "-":
            raise ServerError(rest)
        if kind == ":":
            return int(rest)
        if kind == "$":
            return None if rest == "-1" else (await reader.readexactly(int(rest) + 2))[:-2].decode(errors="replace")
        if kind == "*":
            return [await self._reply(reader) for _ in range(int(rest))]
        return rest


class Tokentap(Process):
    """`tokentap demo`: a proxy and its own engine."""

    def __init__(self, name, work, binary, flags, node=None):
        super().__init__(name, work, node)
        self.binary, self.flags, self.starts, self.data, self.control = binary, flags, 0, None, None
        self.has_log, self.is_strict = "--data-dir" in flags, "--strict" in flags

    async def start(self):
        self.starts += 1
        self.log = self.work / f"{self.name}.{self.starts}.log"
        ports = ["--listen", f"{self.host}:0", "--control-listen", f"{self.host}:0", "--control-token", "none", "--log-format", "json"]
        self.spawn([self.binary, "demo", *ports, *self.flags])

        async def ready():
            text = self.log.read_text()
            if not self.is_running:
                raise RuntimeError(f"{self.name} ended:\n{text[-2000:]}")
            return "Metrics:" in text and "has been probed" in text and text

        text = await until(f"{self.name} is ready", ready)
        self.data = re.search(r"curl -s (http://[0-9.:]+)/generate", text)[1]
        self.control = re.search(r"Metrics: (http://[0-9.:]+)/metrics", text)[1]

    @property
    def is_usable(self):
        return self.is_running and self.data is not None


class Relay:
    """A TCP relay in front of one server, for one tokentap or for a replica. It can refuse connections, or accept them and forward
    nothing."""

    def __init__(self, port):
        self.target, self.port, self.mode, self.writers, self.listener = port, None, "open", set(), None
        self.flows = asyncio.Event()
        self.flows.set()

    async def start(self):
        self.listener = await asyncio.start_server(self.serve, "127.0.0.1", 0)
        self.port = self.listener.sockets[0].getsockname()[1]

    def cut(self):
        """Closes all connections and refuses new ones."""
        self.mode = "cut"
        for writer in list(self.writers):
            writer.transport.abort()

    def hold(self):
        """Connections stay open, and no byte passes."""
        self.mode = "held"
        self.flows.clear()

    def open(self):
        self.mode = "open"
        self.flows.set()

    async def serve(self, reader, writer):
        if self.mode == "cut":
            writer.transport.abort()
            return
        self.writers.add(writer)
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
        except OSError:
            writer.transport.abort()
            self.writers.discard(writer)
            return
        self.writers.add(far_writer)
        try:
            await asyncio.gather(self.copy(reader, far_writer), self.copy(far_reader, writer))
        except asyncio.CancelledError:
            # the history has ended
            pass
        self.writers -= {writer, far_writer}

    async def copy(self, reader, writer):
        try:
            while data := await reader.read(1 << 16):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()
