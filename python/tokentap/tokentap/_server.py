# SPDX-License-Identifier: Apache-2.0
"""`serve` and `demo`: a tokentap that runs as a child process of Python."""

from __future__ import annotations

import asyncio
import atexit
import http.client
import logging
import os
import re
import signal
import ssl
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TypeAlias
from urllib.parse import urlsplit

from . import _binary as binaries
from ._aio import AsyncClient
from ._client import Client
from ._errors import StartFailed
from ._process import Log, Process

LOG = logging.getLogger("tokentap")

# A value of a flag; a sequence becomes a list with commas, and None is not passed.
Setting: TypeAlias = "str | int | float | bool | os.PathLike[str] | Sequence[str | int] | None"

# Settings that are passed in the environment, because every user of the machine can read a command line.
SECRETS = ("agent_token", "control_token", "metrics_token", "upstream_api_key", "upstream_admin_key", "ledger")

# The line of `serve` with both URLs, in either format of the log. `demo` prints them in its text.
LISTENS = re.compile(
    r'tokentap listens\b.*\bdata"?[=:]"?(?P<data>https?://[^\s",]+).*\bcontrol"?[=:]"?(?P<control>https?://[^\s",]+)'
)
DEMO_DATA = re.compile(r"^curl -s (?P<data>https?://\S+)/generate ")
DEMO_CONTROL = re.compile(r"^Metrics: (?P<control>https?://\S+)/metrics ")
# The part of the log filter that keeps that line.
LISTENS_FILTER = "tokentap::cli::serve=info"

# Seconds between two looks at the log or the probe.
POLL = 0.02
# Seconds that a reply of the probe may take.
PROBE_TIMEOUT = 5.0
# Seconds after the second SIGTERM, which closes all connections, until SIGKILL.
CLOSE_TIMEOUT = 5.0
# Lines of the log in an error.
LOG_LINES = 30


class Server:
    """A tokentap of this Python process, made by `serve` or `demo`; not started yet.

    `with` and `async with` start and stop it. `start` and `stop` do the same, and it is stopped when Python exits. On
    Linux it also gets SIGTERM if Python is killed. It can be started again; the ports are other ones then.
    """

    def __init__(
        self,
        command: str,
        *,
        binary: str | os.PathLike[str] | None,
        flags: Sequence[str],
        log_file: str | os.PathLike[str] | None,
        wait_ready: bool,
        start_timeout: float,
        stop_timeout: float,
        settings: Mapping[str, Setting],
    ) -> None:
        if any(flag == "--log" or flag.startswith("--log=") for flag in flags):
            raise ValueError("use log=FILTER instead of the flag --log: the ports are read from the log")
        if not start_timeout > 0 or stop_timeout < 0:
            raise ValueError(f"start_timeout is {start_timeout} and stop_timeout {stop_timeout} seconds")
        self._command, self._binary, self._flags = command, binary, list(flags)
        self._log_file, self._wait_ready = log_file, wait_ready
        self._start_timeout, self._stop_timeout = start_timeout, stop_timeout
        self._settings = dict(settings)
        self._lock = threading.Lock()
        self._cancelled = threading.Event()
        self._process: Process | None = None
        self._log: Log | None = None
        self._urls: dict[str, str] = {}
        self._client: Client | None = None
        self._async_client: AsyncClient | None = None

    def __repr__(self) -> str:
        where = f"{self._urls['data']}, {self._urls['control']}" if self._urls else "not running"
        return f"<Server of `tokentap {self._command}`: {where}>"

    @property
    def url(self) -> str:
        """The URL of the data port, such as `http://127.0.0.1:41234`, without a trailing slash."""
        return self._started("data")

    @property
    def control_url(self) -> str:
        """The URL of the control port."""
        return self._started("control")

    @property
    def client(self) -> Client:
        """A `Client` of both ports, with the tokens of the settings; it is closed when tokentap is stopped."""
        if self._client is None:
            token, control_token = self._tokens()
            self._client = Client(self.url, self.control_url, token=token, control_token=control_token)
        return self._client

    @property
    def async_client(self) -> AsyncClient:
        """An `AsyncClient` of both ports; `async with` closes it. It needs aiohttp."""
        if self._async_client is None:
            token, control_token = self._tokens()
            self._async_client = AsyncClient(self.url, self.control_url, token=token, control_token=control_token)
        return self._async_client

    @property
    def pid(self) -> int | None:
        """The id of the process; None if it is not running."""
        process = self._process
        return process.pid if process is not None and process.exit_code is None else None

    @property
    def log(self) -> str:
        """The output of the process until now; the file of `log_file` also has it after the end."""
        return "" if self._log is None else self._log.text()

    def start(self) -> Server:
        """Starts it, and waits until it is ready.

        Raises `BinaryNotFound`, or `StartFailed` with the end of the log.
        """
        with self._lock:
            if self._process is not None:
                raise RuntimeError("this tokentap was started already")
            self._cancelled.clear()
            path = binaries.find(self._binary)
            self._log = Log(self._log_file)
            try:
                self._process = Process([str(path), self._command, *self._arguments()], self._environment(), self._log)
                self._wait(self._process, self._log)
            except BaseException:
                self._end(stop_timeout=0)
                raise
            # only what is running has to be stopped at exit
            atexit.register(self.stop)
        return self

    def stop(self) -> None:
        """Stops it with SIGTERM: it completes the running requests, and writes its log and archive.

        After `stop_timeout` seconds a second SIGTERM closes the connections that remain, and 5 s later SIGKILL ends
        the process. Nothing happens if it is not running.
        """
        with self._lock:
            if self._client is not None:
                self._client.close()
            self._end(self._stop_timeout)
            # after an interrupt it can be called again, also at exit
            atexit.unregister(self.stop)

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def __aenter__(self) -> Server:
        started = asyncio.get_running_loop().run_in_executor(None, self.start)
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            # the thread cannot be cancelled, but stops the process when it sees this
            self._cancelled.set()
            await asyncio.wait({started})
            if started.exception() is None:
                await asyncio.to_thread(self.stop)
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._async_client is not None:
                await self._async_client.close()
        finally:
            await asyncio.to_thread(self.stop)

    def _started(self, port: str) -> str:
        if port not in self._urls:
            raise RuntimeError("tokentap is not running: use `with tokentap.serve(...) as server:`")
        return self._urls[port]

    def _end(self, stop_timeout: float) -> None:
        process, log = self._process, self._log
        self._client = self._async_client = None
        self._urls = {}
        if process is not None and not process.is_inherited:
            for number, seconds in ((signal.SIGTERM, stop_timeout), (signal.SIGTERM, CLOSE_TIMEOUT)):
                process.signal(number)
                if process.wait(seconds):
                    break
            else:
                LOG.warning("tokentap (pid %d) did not end after SIGTERM; it is killed", process.pid)
                process.signal(signal.SIGKILL)
                process.wait(None)
        # only now, so that after an interrupt a second call continues
        self._process = self._log = None
        if log is not None:
            log.close()

    def _arguments(self) -> list[str]:
        """The command line: keyword arguments, then `flags`."""
        named = {name: value for name, value in self._settings.items() if name not in (*SECRETS, "log")}
        flags = [f"--{name.replace('_', '-')}={_text(value)}" for name, value in named.items() if value is not None]
        return [*flags, *self._flags]

    def _environment(self) -> dict[str, str]:
        """The defaults of this module, which a flag overrides, and secrets."""
        env = {**os.environ, "TOKENTAP_LISTEN": "127.0.0.1:0", "TOKENTAP_CONTROL_LISTEN": "127.0.0.1:0"}
        given = self._settings.get("log") or env.get("TOKENTAP_LOG") or "info"
        env["TOKENTAP_LOG"] = f"{given},{LISTENS_FILTER}"
        for name in SECRETS:
            if self._settings.get(name) is not None:
                env[f"TOKENTAP_{name.upper()}"] = str(self._settings[name])
        return env

    def _tokens(self) -> tuple[str | None, str | None]:
        """The tokens of the data port and of the control port."""
        env = self._environment()
        return _token(env.get("TOKENTAP_AGENT_TOKEN")), _token(env.get("TOKENTAP_CONTROL_TOKEN"))

    def _wait(self, process: Process, log: Log) -> None:
        """Waits until the process is ready; raises `StartFailed` otherwise."""
        end = time.monotonic() + self._start_timeout
        urls: dict[str, str] = {}
        state = "it has not logged its ports"
        while True:
            code = process.exit_code
            for line in log.new_lines():
                for found in (LISTENS.search(line), DEMO_DATA.match(line), DEMO_CONTROL.match(line)):
                    urls |= {port: _reachable(url) for port, url in found.groupdict().items()} if found else {}
            if code is not None:
                ended = f"exit code {code}" if code >= 0 else f"signal {-code}"
                raise self._failure(f"tokentap ended with {ended} before it was ready", log, code)
            if len(urls) == 2:
                state = _probe(urls["control"]) if self._wait_ready else ""
                if not state:
                    self._urls = urls
                    return
            if self._cancelled.is_set():
                raise self._failure("the start was cancelled", log, None)
            if time.monotonic() > end:
                raise self._failure(f"tokentap was not ready after {self._start_timeout:g} s: {state}", log, None)
            process.wait(POLL)

    def _failure(self, message: str, log: Log, code: int | None) -> StartFailed:
        tail = log.tail(LOG_LINES)
        command = " ".join([self._command, *self._arguments()])
        return StartFailed(
            f"{message}; the end of the log of `tokentap {command}`:\n{tail}\n", exit_code=code, log=tail
        )


def serve(
    upstream: str = "http://127.0.0.1:30000",
    *,
    binary: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    log_file: str | os.PathLike[str] | None = None,
    wait_ready: bool = True,
    start_timeout: float = 60.0,
    stop_timeout: float = 30.0,
    **settings: Setting,
) -> Server:
    """`tokentap serve` beside the SGLang server at `upstream`, on free ports of 127.0.0.1, as a context manager.

    Other keyword arguments are flags: `top_logprobs=8` is `--top-logprobs=8`, `session_from=["key", "user"]` is
    `--session-from=key,user`. `flags` are further arguments, unchanged. `TOKENTAP_*` variables apply as usual, except
    those of the ports. Tokens, keys and `ledger` are passed in the environment, not on the command line.

    `binary` is the path of the binary; without it TOKENTAP_BIN, the scripts of this interpreter and PATH are searched.
    It starts within `start_timeout` seconds: until `/readyz` is 200, so the engine must answer, or, without
    `wait_ready`, until it listens. `stop` says what `stop_timeout` seconds are.

    The log and all output are appended to `log_file`, one file for each tokentap, or to a temporary file that is
    deleted at the end.
    """
    return Server(
        "serve",
        binary=binary,
        flags=flags,
        log_file=log_file,
        wait_ready=wait_ready,
        start_timeout=start_timeout,
        stop_timeout=stop_timeout,
        settings={"upstream": upstream, **settings},
    )


def demo(
    *,
    binary: str | os.PathLike[str] | None = None,
    flags: Sequence[str] = (),
    log_file: str | os.PathLike[str] | None = None,
    start_timeout: float = 60.0,
    stop_timeout: float = 30.0,
    **settings: Setting,
) -> Server:
    """`tokentap demo` on free ports of 127.0.0.1, as a context manager: tokentap in front of a tiny language model.

    It needs no engine, GPU or model. The arguments are those of `serve`.
    """
    return Server(
        "demo",
        binary=binary,
        flags=flags,
        log_file=log_file,
        wait_ready=True,
        start_timeout=start_timeout,
        stop_timeout=stop_timeout,
        settings=settings,
    )


def _text(value: Setting) -> str:
    """The value of a flag."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ",".join(str(item) for item in value)
    return str(value)


def _token(given: str | None) -> str | None:
    """The token of a setting: `@FILE` is read, and `none` is no token."""
    if not given or given == "none":
        return None
    return Path(given[1:]).read_text().strip() if given.startswith("@") else given


def _reachable(url: str) -> str:
    """The URL with a loopback address in place of one that means all interfaces."""
    return url.replace("//0.0.0.0:", "//127.0.0.1:").replace("//[::]:", "//[::1]:")


def _probe(control_url: str) -> str:
    """What `/readyz` answers; empty if it is ready."""
    url = urlsplit(control_url)
    host = url.hostname or ""
    connection: http.client.HTTPConnection
    if url.scheme == "https":
        # the certificate may have another name than this address; the probe sends nothing that is secret
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        connection = http.client.HTTPSConnection(host, url.port, timeout=PROBE_TIMEOUT, context=context)
    else:
        connection = http.client.HTTPConnection(host, url.port, timeout=PROBE_TIMEOUT)
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        body = reply.read().decode(errors="replace").strip()
        return "" if reply.status == 200 else f"/readyz is {reply.status}: {body}"
    except (OSError, http.client.HTTPException) as error:
        return f"/readyz does not answer: {error}"
    finally:
        connection.close()
