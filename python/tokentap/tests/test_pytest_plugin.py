# SPDX-License-Identifier: Apache-2.0
"""The fixtures of the pytest plugin, in a pytest that runs as another process."""

from __future__ import annotations

import pytest
from conftest import ROOT, binary

PASSING = """
    import os

    PIDS = []

    def test_a_generation(tokentap_demo, tokentap_session):
        PIDS.append(tokentap_demo.pid)
        made = tokentap_demo.client.generate("a", session=tokentap_session, sampling_params={"max_new_tokens": 4})
        assert len(made.entropy) == len(made.output_ids)
        assert made.session == tokentap_session
        assert tokentap_session.startswith("test-a-generation-")

    def test_the_session_was_deleted_and_the_demo_is_the_same(tokentap_demo, tokentap_session):
        assert list(tokentap_demo.client.sessions()) == []
        assert [tokentap_demo.pid] == PIDS
"""


@pytest.fixture
def plugged(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A pytest with the package of this checkout; the plugin is loaded by name instead of its entry point."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "python" / "tokentap"))
    monkeypatch.setenv("TOKENTAP_BIN", binary())
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-p", "tokentap.pytest_plugin", *arguments)


def test_the_fixtures_give_a_demo_and_a_session(plugged: pytest.Pytester) -> None:
    plugged.makepyfile(PASSING)
    run(plugged).assert_outcomes(passed=2)


def test_a_run_without_the_fixtures_starts_nothing(plugged: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENTAP_BIN", "/absent")
    plugged.makepyfile("def test_nothing(): pass")
    run(plugged).assert_outcomes(passed=1)


def test_the_options_set_the_binary_and_the_flags(plugged: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    built = binary()
    monkeypatch.setenv("TOKENTAP_BIN", "/absent")
    plugged.makeini("[pytest]\ntokentap_flags = --entropy off --record false\n")
    plugged.makepyfile(
        """
        def test_flags(tokentap_demo):
            made = tokentap_demo.client.generate("a", sampling_params={"max_new_tokens": 4})
            assert made.entropy is None
            assert made.entropy_info is None
        """
    )
    run(plugged, f"--tokentap-bin={built}").assert_outcomes(passed=1)
    result = run(plugged)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*BinaryNotFound: /absent (TOKENTAP_BIN) is not an executable file*"])


def test_a_failed_test_shows_the_log(plugged: pytest.Pytester) -> None:
    plugged.makepyfile("def test_failing(tokentap_demo): assert False")
    result = run(plugged)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*- tokentap log -*", "*INFO the upstream answers*"])


def test_the_fixtures_have_a_description(plugged: pytest.Pytester) -> None:
    result = run(plugged, "--fixtures")
    result.stdout.fnmatch_lines(["tokentap_demo [[]session scope[]]*", "tokentap_session*", "*it is deleted after*"])
