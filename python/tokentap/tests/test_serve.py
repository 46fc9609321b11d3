# SPDX-License-Identifier: Apache-2.0
"""`serve` and `demo`, with the built binary."""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import Demo, binary

import tokentap
from tokentap import HttpError, StartFailed

SAMPLING = {"max_new_tokens": 4, "ignore_eos": True}

# A port on which no server listens.
NO_ENGINE = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests use the lookup by TOKENTAP_BIN."""
    monkeypatch.setenv("TOKENTAP_BIN", binary())


def is_running(pid: int) -> bool:
    """Whether the process exists and has not ended."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


def wait_for(condition: Callable[[], bool], what: str) -> None:
    """Polls for at most 20 seconds: the end of a process that is not a child has no event."""
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, f"never happened: {what}"
        time.sleep(0.02)


def pid_of(server: tokentap.Server) -> int:
    """The id of the running process."""
    assert server.pid is not None
    return server.pid


def test_the_demo_serves_on_free_ports_until_the_block_ends() -> None:
    with tokentap.demo() as server:
        pid = pid_of(server)
        made = server.client.generate("The lamp", session="a", sampling_params=SAMPLING)
        assert made.entropy is not None
        assert len(made.entropy) == len(made.output_ids) == 4
        assert [one["session"] for one in server.client.sessions()] == ["a"]
        assert is_running(pid)
        assert repr(server) == f"<Server of `tokentap demo`: {server.url}, {server.control_url}>"
    assert not is_running(pid)
    assert server.pid is None
    assert repr(server) == "<Server of `tokentap demo`: not running>"
    for name in ("url", "control_url", "client"):
        with pytest.raises(RuntimeError, match="not running"):
            getattr(server, name)


def test_two_run_at_once_and_one_can_be_started_again() -> None:
    with tokentap.demo() as one, tokentap.demo() as two:
        ports = {one.url, one.control_url, two.url, two.control_url}
        assert len(ports) == 4
        one.client.generate("a", session="of-one", sampling_params=SAMPLING)
        assert list(two.client.sessions()) == []
        with pytest.raises(RuntimeError, match="started already"):
            one.start()
    with one:
        assert list(one.client.sessions()) == []


def test_serve_runs_in_front_of_an_engine(demo: Demo, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("earlier\n")
    with tokentap.serve(
        demo.data, top_logprobs=5, session_from=["key", "user"], strict=False, data_dir=tmp_path, log_file=log
    ) as server:
        made = server.client.generate("The lamp", sampling_params=SAMPLING)
        assert made.entropy is not None
        assert server.log.count("tokentap listens") == 1
        assert "earlier" not in server.log
    text = log.read_text()
    assert text.startswith("earlier\n")
    assert text.rstrip().endswith("drained"), "SIGTERM drained it"
    assert (server.log, "top_logprobs=5" in text) == ("", True)


@pytest.mark.parametrize("settings", [{"log": "off"}, {"log": "warn", "log_format": "json"}, {"log_format": "json"}])
def test_the_ports_are_found_in_every_log(settings: dict[str, str]) -> None:
    with tokentap.serve(NO_ENGINE, wait_ready=False, **settings) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.control_url != server.url


def test_flags_override_the_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTAP_LISTEN", "192.0.2.1:1")
    with tokentap.demo(flags=["--listen", "0.0.0.0:0", "--control-listen=[::1]:0"]) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.control_url.startswith("http://[::1]:")
        assert server.client.generate("a", sampling_params=SAMPLING).output_ids
        assert server.client.policy()["epoch"] == 0
    with pytest.raises(ValueError, match="log="):
        tokentap.demo(flags=["--log=off"])


def test_tokens_are_used_by_the_client_and_are_not_on_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("of-agents\n")
    with tokentap.demo(agent_token=f"@{file}", control_token="of-trainers") as server:
        assert server.client.generate("a", sampling_params=SAMPLING).output_ids
        assert server.client.policy()["epoch"] == 0
        with tokentap.Client(server.url, server.control_url, retries=0) as other:
            with pytest.raises(HttpError):
                other.generate("a", sampling_params=SAMPLING)
            with pytest.raises(HttpError):
                other.policy()
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes()
        assert b"demo" in command
        assert b"of-trainers" not in command


def test_a_refused_flag_is_an_error_with_the_log_and_the_exit_code() -> None:
    server = tokentap.demo(no_such_flag=3)
    with pytest.raises(StartFailed) as raised, server:
        pass
    assert raised.value.exit_code == 64
    assert "--no-such-flag on the command line: there is no such setting" in raised.value.log
    assert raised.value.log in str(raised.value)
    assert "exit code 64" in str(raised.value)
    assert server.pid is None


def test_a_port_in_use_is_an_error_with_the_log(demo: Demo) -> None:
    taken = demo.data.removeprefix("http://")
    with pytest.raises(StartFailed, match="Address already in use") as raised:
        tokentap.demo(listen=taken).start()
    assert raised.value.exit_code == 1


def test_an_engine_that_does_not_answer_is_an_error_after_the_timeout() -> None:
    # a loaded machine needs a while until the ports are logged
    server = tokentap.serve(NO_ENGINE, start_timeout=4)
    with pytest.raises(StartFailed, match=f"waiting for the SGLang server at {NO_ENGINE}") as raised:
        server.start()
    assert raised.value.exit_code is None
    assert "waiting for the upstream" in raised.value.log
    assert server.pid is None
    with tokentap.serve(NO_ENGINE, wait_ready=False) as running:
        assert running.client.policy()["epoch"] == 0


def test_it_ends_after_an_exception_in_the_block() -> None:
    pid = 0

    def failing() -> None:
        nonlocal pid
        with tokentap.demo() as server:
            pid = pid_of(server)
            raise KeyError("of the block")

    with pytest.raises(KeyError, match="of the block"):
        failing()
    assert pid
    assert not is_running(pid)


def test_a_process_that_ignores_sigterm_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentap._server.CLOSE_TIMEOUT", 0.1)
    script = tmp_path / "tokentap"
    script.write_text(
        f"#!{sys.executable}\n"
        "import signal, sys, time\n"
        "if sys.argv[1] == '--version': sys.exit(print('tokentap 0.0.0'))\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "print('tokentap listens data=http://127.0.0.1:1 control=http://127.0.0.1:2', flush=True)\n"
        "time.sleep(60)\n"
    )
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    server = tokentap.serve(NO_ENGINE, binary=script, wait_ready=False, stop_timeout=0.1)
    with server:
        pid = pid_of(server)
    assert not is_running(pid)


def test_an_interrupted_stop_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    server = tokentap.demo().start()
    pid = server.pid
    assert pid is not None

    def interrupt(*_: object) -> bool:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("tokentap._process.Process.wait", interrupt)
        with pytest.raises(KeyboardInterrupt):
            server.stop()
    server.stop()
    assert not is_running(pid)


def test_a_client_that_fails_to_close_does_not_keep_it_running() -> None:
    async def fail() -> None:
        raise OSError("closed")

    async def run() -> int:
        async with tokentap.demo() as server:
            pid = server.pid
            assert pid is not None
            server.async_client.close = fail  # type: ignore[method-assign]
            with pytest.raises(OSError, match="closed"):
                await server.__aexit__(None, None, None)
            return pid

    assert not is_running(asyncio.run(run()))


def test_a_stream_that_is_still_read_is_cut_after_the_stop_timeout() -> None:
    server = tokentap.demo(stop_timeout=0.2).start()
    pid = pid_of(server)
    url = server.url
    stream = tokentap.Client(url, retries=0).stream(
        "a", sampling_params={"max_new_tokens": 100_000, "ignore_eos": True}
    )
    next(stream)
    server.stop()
    assert not is_running(pid)
    server.stop()


def test_much_output_does_not_block_it() -> None:
    with tokentap.demo(log="trace") as server:
        end = time.monotonic() + 30
        while len(server.log) < 1 << 17:  # more than a pipe holds
            assert time.monotonic() < end, f"only {len(server.log)} characters were logged"
            server.client.generate("a", sampling_params=SAMPLING)


def test_it_outlives_the_thread_that_started_it() -> None:
    server = tokentap.demo()
    thread = threading.Thread(target=server.start)
    thread.start()
    thread.join()
    try:
        assert server.client.generate("a", sampling_params=SAMPLING).output_ids
    finally:
        server.stop()


def test_async_with_gives_an_async_client() -> None:
    async def run() -> int:
        async with tokentap.demo() as one, tokentap.serve(one.url) as two:
            made = await asyncio.gather(
                *(server.async_client.generate("a", sampling_params=SAMPLING) for server in (one, two))
            )
            assert [len(each.output_ids) for each in made] == [4, 4]
            return pid_of(two)

    assert not is_running(asyncio.run(run()))


def test_a_cancelled_start_ends_the_process() -> None:
    async def run() -> None:
        server = tokentap.serve(NO_ENGINE)
        entering = asyncio.create_task(server.__aenter__())
        while server.pid is None:
            await asyncio.sleep(0.01)
        pid = server.pid
        entering.cancel()
        with pytest.raises(asyncio.CancelledError):
            await entering
        assert not is_running(pid)

    asyncio.run(run())


STARTS = """
import sys, time, tokentap
server = tokentap.demo().start()
print(server.pid, flush=True)
{then}
"""


def python(then: str) -> tuple[subprocess.Popen[str], int]:
    """A Python process that has started a demo, and the id of the demo."""
    code = STARTS.format(then=then)
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    )
    assert child.stdout is not None
    return child, int(child.stdout.readline())


@pytest.mark.parametrize(
    "then", ["", "sys.exit(3)", "raise KeyError", "import os; os.kill(os.getpid(), 2); time.sleep(9)"]
)
def test_it_ends_when_python_exits(then: str) -> None:
    child, pid = python(then)
    child.communicate(timeout=30)
    assert not is_running(pid)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux signals the death of a parent")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_when_python_is_killed(number: signal.Signals) -> None:
    child, pid = python("time.sleep(60)")
    assert is_running(pid)
    child.send_signal(number)
    child.communicate(timeout=30)
    wait_for(lambda: not is_running(pid), "tokentap ends")


def test_a_fork_does_not_stop_it() -> None:
    with tokentap.demo() as server:
        child = os.fork()
        if child == 0:
            server.stop()
            os._exit(0)
        os.waitpid(child, 0)
        assert server.client.generate("a", sampling_params=SAMPLING).output_ids


def test_invalid_timeouts_are_refused() -> None:
    with pytest.raises(ValueError, match="start_timeout"):
        tokentap.demo(start_timeout=0)
    with pytest.raises(ValueError, match="stop_timeout"):
        tokentap.demo(stop_timeout=-1)
