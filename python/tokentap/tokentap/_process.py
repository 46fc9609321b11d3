# SPDX-License-Identifier: Apache-2.0
"""A child process that ends when Python ends, and its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

# A program that asks Linux for a SIGTERM when its parent dies, and then replaces itself with the command: `preexec_fn`
# is unsafe in a process with threads. The parent may have died before the request, so its id is compared.
LAUNCHER = """
import os, signal, sys
try:
    import ctypes
    ctypes.CDLL(None).prctl(1, signal.SIGTERM, 0, 0, 0)
except (ImportError, OSError, AttributeError):
    pass
if os.getppid() != int(sys.argv[1]):
    sys.exit("the Python process that starts tokentap has ended")
for name in ("SIGPIPE", "SIGXFSZ"):
    signal.signal(getattr(signal, name), signal.SIG_DFL)
os.execv(sys.argv[2], sys.argv[2:])
"""

# Bytes at the end of a log in which the last lines are searched.
TAIL_BYTES = 64 * 1024


class Log:
    """The output of a process: a file without a name, or the end of `path`, to which the process appends."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        # a file instead of a pipe: a pipe that is not drained blocks the process
        self._file: BinaryIO = tempfile.TemporaryFile("w+b") if path is None else open(path, "a+b")  # noqa: SIM115
        self._start = self._parsed = os.fstat(self._file.fileno()).st_size

    def fileno(self) -> int:
        """The descriptor that the process inherits."""
        return self._file.fileno()

    def text(self) -> str:
        """All lines of this process."""
        return self._read(self._start)

    def tail(self, lines: int) -> str:
        """The last lines."""
        start = max(self._start, os.fstat(self.fileno()).st_size - TAIL_BYTES)
        return "\n".join(self._read(start).splitlines()[-lines:])

    def new_lines(self) -> Iterator[str]:
        """The complete lines that no earlier call returned."""
        text = os.pread(self.fileno(), os.fstat(self.fileno()).st_size - self._parsed, self._parsed)
        complete = text[: text.rfind(b"\n") + 1]
        self._parsed += len(complete)
        yield from complete.decode(errors="replace").splitlines()

    def close(self) -> None:
        """Closes the file; one without a name is deleted then."""
        self._file.close()

    def _read(self, start: int) -> str:
        # pread does not move the offset, which the process shares
        return os.pread(self.fileno(), os.fstat(self.fileno()).st_size - start, start).decode(errors="replace")


class Process:
    """A running command in a separate session of the system, so that Ctrl-C in a terminal interrupts Python only.

    On Linux it gets SIGTERM when Python dies, even by SIGKILL.
    """

    def __init__(self, command: Sequence[str], env: Mapping[str, str], log: Log) -> None:
        self._command, self._env, self._log = command, env, log
        self._owner = os.getpid()
        self._spawned, self._ended = threading.Event(), threading.Event()
        self._popen: subprocess.Popen[bytes] | None = None
        self._error: BaseException | None = None
        # Linux sends the signal when the thread that started the process ends, so this thread waits for the process
        threading.Thread(target=self._run, name="tokentap", daemon=True).start()
        self._spawned.wait()
        if self._error is not None:
            raise self._error

    @property
    def pid(self) -> int:
        """The id of the process."""
        return self._child.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; -N after signal N."""
        return self._child.returncode if self._ended.is_set() else None

    def wait(self, seconds: float | None) -> bool:
        """Waits until it ends; returns whether it has ended."""
        return self._ended.wait(seconds)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended or belongs to the parent of this process after a fork."""
        if os.getpid() == self._owner and not self._ended.is_set():
            self._child.send_signal(number)

    @property
    def is_inherited(self) -> bool:
        """Whether this Python is a fork of the one that started the process."""
        return os.getpid() != self._owner

    @property
    def _child(self) -> subprocess.Popen[bytes]:
        assert self._popen is not None, "the constructor raises if it was not started"
        return self._popen

    def _run(self) -> None:
        try:
            self._popen = subprocess.Popen(
                [*_launcher(), *self._command],
                stdin=subprocess.DEVNULL,
                stdout=self._log.fileno(),
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )
        except BaseException as error:
            self._error = error
            self._spawned.set()
            return
        self._spawned.set()
        self._popen.wait()
        self._ended.set()


def _launcher() -> list[str]:
    """The command before that of the process; empty without Linux, or if Python is embedded in another program."""
    is_python = os.path.basename(sys.executable or "").startswith("python") and not hasattr(sys, "frozen")
    if sys.platform != "linux" or not is_python:
        return []
    return [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid())]
