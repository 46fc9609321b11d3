# SPDX-License-Identifier: Apache-2.0
"""Fixtures for pytest: a running `tokentap demo`, and sessions of it.

pytest loads this module by its entry point `tokentap`. The command line has `--tokentap-bin PATH`, the configuration
file `tokentap_flags`, such as `--top-logprobs 8`. The report of a failed test has the last lines of tokentap's log.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Generator, Iterator
from contextlib import suppress
from typing import Any

import pytest

from ._errors import TokentapError
from ._server import LOG_LINES, Server, demo

__all__ = ["tokentap_demo", "tokentap_session"]

_RUNNING = pytest.StashKey[Server]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the options."""
    group = parser.getgroup("tokentap")
    group.addoption("--tokentap-bin", metavar="PATH", help="The tokentap binary of the fixture tokentap_demo.")
    parser.addini("tokentap_flags", "Flags of the fixture tokentap_demo, such as --top-logprobs 8.", "args", default=[])


@pytest.fixture(scope="session")
def tokentap_demo(pytestconfig: pytest.Config) -> Iterator[Server]:
    """A running `tokentap demo`, one for the whole run; with `url`, `control_url` and `client`."""
    binary = pytestconfig.getoption("--tokentap-bin")
    with demo(binary=binary, flags=pytestconfig.getini("tokentap_flags")) as server:
        pytestconfig.stash[_RUNNING] = server
        yield server
        del pytestconfig.stash[_RUNNING]


@pytest.fixture
def tokentap_session(request: pytest.FixtureRequest, tokentap_demo: Server) -> Iterator[str]:
    """The name of a session that no other test uses; it is deleted after the test."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:80]
    session = f"{name}-{uuid.uuid4().hex[:12]}"
    yield session
    # most often a test that did not use it
    with suppress(TokentapError):
        tokentap_demo.client.delete(session)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """Adds the end of the log to the report of a failed test that uses the demo."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    server = item.config.stash.get(_RUNNING, None)
    if report.failed and server is not None and "tokentap_demo" in getattr(item, "fixturenames", ()):
        report.sections.append(("tokentap log", "\n".join(server.log.splitlines()[-LOG_LINES:])))
