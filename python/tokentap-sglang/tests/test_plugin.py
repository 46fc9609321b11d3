# SPDX-License-Identifier: Apache-2.0
"""Tests without SGLang and torch: when the plugin declines, which requests get values, and that no error escapes."""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import tokentap_sglang
from tokentap_sglang import contract, hooks, observer
from tokentap_sglang.contract import Declined, Settings
from tokentap_sglang.request import FIELD, SWITCH, asks_for_entropy, parse_switch


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "TOKENTAP_SGLANG_LOGGED",
        "TOKENTAP_ENTROPY_TOP_K",
        "SGLANG_RETURN_ORIGINAL_LOGPROB",
        "SGLANG_RUST_SERVER",
    ):
        monkeypatch.delenv(name, raising=False)


def request(value: Any, **more: Any) -> SimpleNamespace:
    params = SimpleNamespace(custom_params={SWITCH: value} if value is not None else None)
    return SimpleNamespace(sampling_params=params, customized_info=None, beam_group=None, **more)


class Values:
    """The part of a tensor on the host that is used."""

    def __init__(self, *values: float) -> None:
        self.values = list(values)

    def tolist(self) -> list[float]:
        return self.values


def commit(index: int, *tokens: int) -> SimpleNamespace:
    return SimpleNamespace(output_index=index, token_ids=tokens or (7,))


def consume(
    requests: list[SimpleNamespace], commits: list[Any], *values: float, full: bool = True
) -> observer.ErrorCount:
    errors = observer.ErrorCount()
    observer.HostEntropy(Values(*values), full, errors).consume(SimpleNamespace(reqs=requests), commits)
    return errors


def test_only_true_and_full_ask_for_entropies() -> None:
    assert parse_switch({SWITCH: True}) is True
    assert parse_switch({SWITCH: "full"}) == "full"
    for odd in (None, [], {}, {SWITCH: 1}, {SWITCH: "yes"}, {SWITCH: None}, {SWITCH: [True]}, {SWITCH: {}}, "true"):
        assert parse_switch(odd) is False, odd


def test_the_import_needs_neither_sglang_nor_torch() -> None:
    code = "import sys, tokentap_sglang; assert not {'torch', 'sglang', 'triton'} & set(sys.modules); print('fine')"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "fine\n"


def test_without_sglang_one_line_is_logged_for_all_processes(caplog: pytest.LogCaptureFixture) -> None:
    tokentap_sglang.register()
    tokentap_sglang.register()
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "SGLang cannot be imported" in caplog.text


def sglang(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    module = ModuleType("sglang.version")
    module.__version__ = version  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "sglang", ModuleType("sglang"))
    monkeypatch.setitem(sys.modules, "sglang.version", module)


@pytest.mark.parametrize("version", ["0.5.22", "0.5.24", "0.5.230", "0.5.23rc1", "0.6.0", "0.5.6.post2"])
def test_another_version_is_declined(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    sglang(monkeypatch, version)
    with pytest.raises(Declined, match="the plugin supports"):
        contract.check_installation()


@pytest.mark.parametrize("version", ["0.5.23", "0.5.23.post1"])
def test_a_known_version_without_its_functions_is_declined(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    sglang(monkeypatch, version)
    with pytest.raises(Declined, match="does not exist"):
        contract.check_installation()


def test_functions_with_other_parameters_are_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang(monkeypatch, "0.5.23")
    monkeypatch.setattr(contract, "TARGETS", {"os.path.join": ("a", "b")})
    with pytest.raises(Declined, match="takes"):
        contract.check_installation()
    monkeypatch.setattr(contract, "TARGETS", {"os.path.join": ("a",)})
    contract.check_installation()


@pytest.mark.parametrize("word", ["1", "true", "Yes", "y"])
def test_the_rust_front_end_is_declined(monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    sglang(monkeypatch, "0.5.23")
    monkeypatch.setenv("SGLANG_RUST_SERVER", word)
    with pytest.raises(Declined, match="Rust"):
        contract.check_installation()


@pytest.mark.parametrize("text", ["-1", "", "many", "1.5", "²", "0x10"])
def test_an_invalid_top_k_is_declined(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("TOKENTAP_ENTROPY_TOP_K", text)
    with pytest.raises(Declined, match="TOKENTAP_ENTROPY_TOP_K"):
        Settings.read()


def test_settings_are_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Settings.read() == Settings(0, False)
    monkeypatch.setenv("TOKENTAP_ENTROPY_TOP_K", "20")
    monkeypatch.setenv("SGLANG_RETURN_ORIGINAL_LOGPROB", "True")
    assert Settings.read() == Settings(20, True)


def runner(**changes: Any) -> SimpleNamespace:
    plain = {
        "supports_sampling_observer": lambda: True,
        "sampling_observer": None,
        "is_draft_worker": False,
        "server_args": SimpleNamespace(rl_on_policy_target=None),
    }
    return SimpleNamespace(**plain | changes)


@pytest.mark.parametrize(
    ("changes", "stages", "reason"),
    [
        ({"supports_sampling_observer": lambda: False}, 1, "speculative"),
        ({}, 2, "pipeline"),
        ({"server_args": SimpleNamespace(rl_on_policy_target=None, disaggregation_mode="decode")}, 1, "disaggregation"),
        ({"server_args": SimpleNamespace(rl_on_policy_target="fsdp")}, 1, "rl-on-policy"),
        ({"sampling_observer": object()}, 1, "another plugin"),
    ],
)
def test_an_unsupported_runner_is_declined(changes: dict[str, Any], stages: int, reason: str) -> None:
    hooks._check_runner(runner(), 1)
    with pytest.raises(Declined, match=reason):
        hooks._check_runner(runner(**changes), stages)


def test_installing_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    # SGLang is not installed, and the runner is invalid
    hooks.install(None, runner())
    hooks.install(None, SimpleNamespace())
    assert caplog.text.count("no token entropy") == 2
    caplog.clear()
    hooks.install(None, runner(is_draft_worker=True))
    assert not caplog.records, "draft workers are never observed"


def test_values_go_to_the_requests_with_the_switch() -> None:
    asks, silent, full = request(True), request(None), request("full")
    errors = consume([asks, silent, full], [commit(0), commit(0), commit(0)], 1.0, 2.0, 3.0)
    consume([asks, silent, full], [commit(1), commit(1), None], 1.5, 2.5, 3.5)
    assert asks.customized_info == {FIELD: [1.0, 1.5]}
    assert silent.customized_info is None, "a request without the switch has no key"
    assert full.customized_info == {FIELD: [3.0]}, "a step without a kept token adds no value"
    assert errors.count == 0


def test_tokens_of_other_steps_are_null_and_a_repeated_step_replaces() -> None:
    asks = request(True)
    consume([asks], [commit(2)], 0.5)
    assert asks.customized_info == {FIELD: [None, None, 0.5]}, "the first two steps did not run here"
    consume([asks], [commit(1)], 0.25)
    assert asks.customized_info == {FIELD: [None, 0.25]}, "later values were removed"
    consume([asks], [commit(2, 7, 8)], 0.75)
    assert asks.customized_info == {FIELD: [None, 0.25, 0.75, None]}, "a step has one value, for its first token"


def test_nan_is_null() -> None:
    for value in (math.nan, math.inf, -math.inf):
        asks = request(True)
        consume([asks], [commit(0)], value)
        assert asks.customized_info == {FIELD: [None]}, value


def test_full_gets_null_instead_of_renormalised_values() -> None:
    asks, full = request(True), request("full")
    consume([asks, full], [commit(0), commit(0)], 1.0, 2.0, full=False)
    assert (asks.customized_info, full.customized_info) == ({FIELD: [1.0]}, {FIELD: [None]})


def test_other_keys_stay_and_beams_are_ignored() -> None:
    asks, beam = request(True), request(True)
    asks.customized_info, beam.beam_group = {"other": [1]}, object()
    consume([asks, beam], [commit(0), commit(0)], 1.0, 2.0)
    assert asks.customized_info == {"other": [1], FIELD: [1.0]}
    assert beam.customized_info is None


def test_errors_do_not_reach_the_scheduler(caplog: pytest.LogCaptureFixture) -> None:
    errors = consume([request(True), request(True)], [commit(0), commit(0)], 1.0)
    assert errors.count == 1, "fewer values than requests cannot be assigned"
    assert consume([SimpleNamespace()], [commit(0)], 1.0).count == 1
    broken = observer.EntropyObserver(lambda *_: 1 / 0, Settings(0, False))  # type: ignore[arg-type, return-value]
    for _ in range(11):
        info: Any = SimpleNamespace(grammar_mask=None, logit_bias=None, temperatures=None, custom_logit_processor=None)
        logits: Any = Values()
        assert broken.before_grammar(logits, info) is None, "without a state SGLang skips the rest"
    assert broken.errors.count == 11
    assert caplog.text.count("measuring a step failed") == 2, "the 1st and the 10th time, not every time"


def test_a_step_is_measured_if_it_is_requested_or_unmarked() -> None:
    watch = observer.EntropyObserver(lambda *_: None, Settings(0, False))  # type: ignore[arg-type, return-value]
    for requests, active in [([request(None)], False), ([request(None), request(True)], True), ([], False)]:
        forward: Any = SimpleNamespace(sampling_info=SimpleNamespace())
        batch: Any = SimpleNamespace(reqs=requests)
        hooks.mark_step(forward, object, batch)
        assert watch.is_active(forward.sampling_info) is active
    unmarked: Any = SimpleNamespace()
    assert watch.is_active(unmarked) is True
    nothing: Any = SimpleNamespace(sampling_info=None)
    hooks.mark_step(nothing, object, nothing)
    odd: Any = SimpleNamespace(sampling_info=SimpleNamespace())
    hooks.mark_step(odd, object, odd)
    assert watch.is_active(odd.sampling_info) is True


def test_other_requests_do_not_see_the_key() -> None:
    info = {FIELD: [[None]], "other": [[1]]}
    state: Any
    manager: Any = object()
    for params, seen in [
        ({}, False),
        ({"custom_params": {SWITCH: True}}, True),
        ({"custom_params": {SWITCH: "full"}}, True),
    ]:
        state = SimpleNamespace(obj=SimpleNamespace(sampling_params=params))
        changed = hooks.hide_from_others(manager, {}, state, info, 0, None)
        if seen:
            assert changed is None, "unchanged"
        else:
            assert changed == ((manager, {}, state, {"other": [[1]]}, 0, None), {})
    for obj in (None, SimpleNamespace(), SimpleNamespace(sampling_params=None), SimpleNamespace(sampling_params=[{}])):
        assert not asks_for_entropy(obj), obj
    state = SimpleNamespace(obj=None)
    assert hooks.hide_from_others(manager, {}, state, {"other": [[1]]}, 0, None) is None, (
        "there is no key of the plugin"
    )


def test_the_reason_is_logged_once_for_all_processes() -> None:
    code = "import tokentap_sglang; tokentap_sglang.register()"
    first = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert first.stderr.count("no token entropy") == 1
    reason = first.stderr.strip().removeprefix("no token entropy: ")
    environment = os.environ | {"TOKENTAP_SGLANG_LOGGED": reason}
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    assert child.stderr == ""
