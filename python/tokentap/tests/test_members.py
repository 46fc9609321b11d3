# SPDX-License-Identifier: Apache-2.0
"""Sampling parameters as keywords, names of other APIs, and members that no engine knows."""

from __future__ import annotations

import inspect
import warnings
from types import SimpleNamespace

import pytest
from conftest import Demo, Either
from scripted import GOOD, Scripted

from tokentap import AsyncClient, Client
from tokentap._members import ALIASES, ARGUMENTS, REQUEST, SAMPLING


def test_sampling_parameters_are_keywords(do: Either, scripted: Scripted) -> None:
    scripted.script(GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        do(scripted, "generate", "a", max_new_tokens=3, sampling_params={"temperature": 0.5}, return_logprob=True)
    body = scripted.asked[0].json()
    assert body["sampling_params"] == {"temperature": 0.5, "max_new_tokens": 3}
    assert body["return_logprob"] is True
    assert "max_new_tokens" not in body


def test_a_keyword_limits_the_reply_of_the_engine(do: Either, demo: Demo) -> None:
    assert len(do(demo, "generate", "a", max_new_tokens=3).output_ids) == 3


def test_several_samples_by_keyword_need_a_batch(do: Either, scripted: Scripted) -> None:
    with pytest.raises(ValueError, match="generate_batch"):
        do(scripted, "generate", "a", n=2)


@pytest.mark.parametrize("name", ALIASES)
def test_a_name_of_another_api_is_refused_with_the_right_one(do: Either, scripted: Scripted, name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} .* use {ALIASES[name]}"):
        do(scripted, "generate", "a", **{name: 3})
    assert not scripted.asked


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"top_p": 0.5}, "top_p is a keyword and in sampling_params"),
        ([{"n": 1}], "sampling_params is not a mapping but a list, so top_p cannot be a keyword"),
        (SimpleNamespace(n=1), "sampling_params is not a mapping but a SimpleNamespace, so top_p"),
    ],
)
def test_a_parameter_has_one_place(do: Either, scripted: Scripted, params: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        do(scripted, "generate_batch", ["a"], sampling_params=params, top_p=0.9)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("max_new_token", "max_new_tokens"),
        ("max_token", "max_new_tokens"),
        ("temprature", "temperature"),
        ("stop_tokens_ids", "stop_token_ids"),
    ],
)
def test_a_misspelt_sampling_parameter_is_refused(do: Either, scripted: Scripted, name: str, right: str) -> None:
    with pytest.raises(ValueError, match=f"{name} .* use {right}$"):
        do(scripted, "generate", "a", **{name: 3})
    assert not scripted.asked


@pytest.mark.parametrize("method", ["generate", "generate_batch", "stream"])
@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("sampling_param", {"temperature": 0.0}, "sampling_params"),
        ("samplingparams", {"temperature": 0.0}, "sampling_params"),
        ("samplingParams", {"temperature": 0.0}, "sampling_params"),
        ("tag", {"step": 3}, "tags"),
        ("input_id", [1], "input_ids"),
        ("sessions", "run-1", "session"),
        ("return_entropies", True, "return_entropy"),
        ("entropy_option", {"bounds": True}, "entropy_options"),
    ],
)
def test_a_misspelt_argument_is_refused(
    do: Either, scripted: Scripted, method: str, name: str, value: object, right: str
) -> None:
    with pytest.raises(ValueError, match=f"{name} is neither an argument .* use {right}$"):
        do(scripted, method, "a", **{name: value})
    assert not scripted.asked


@pytest.mark.parametrize("kind", [Client, AsyncClient])
@pytest.mark.parametrize("method", ["generate", "generate_batch", "stream"])
def test_the_arguments_are_those_of_the_methods(kind: type, method: str) -> None:
    arguments = inspect.signature(getattr(kind, method)).parameters
    assert {name for name in arguments if name not in ("self", "fields")} == ARGUMENTS


@pytest.mark.parametrize("params", [{"max_tokens": 3}, [{"top_p": 0.5}, {"max_tokens": 3}]])
def test_sampling_params_with_a_name_of_another_api_are_refused(do: Either, scripted: Scripted, params: object) -> None:
    with pytest.raises(ValueError, match="max_tokens is not a sampling parameter of SGLang: use max_new_tokens"):
        do(scripted, "generate_batch", ["a", "b"], sampling_params=params)
    assert not scripted.asked


@pytest.mark.parametrize("method", ["generate", "generate_batch"])
@pytest.mark.parametrize(
    ("name", "warning"),
    [
        ("newer_member", "no member newer_member; it is sent unchanged$"),
        ("return_logprobs", "no member return_logprobs; it is sent unchanged .did you mean return_logprob"),
    ],
)
def test_an_unknown_member_is_sent_with_a_warning(
    do: Either, scripted: Scripted, method: str, name: str, warning: str
) -> None:
    scripted.script(GOOD)
    with pytest.warns(UserWarning, match=warning) as warned:
        do(scripted, method, "a", **{name: 3})
    assert len(warned) == 1
    assert scripted.asked[0].json()[name] == 3


def test_an_unknown_sampling_parameter_is_for_the_engine_to_refuse(do: Either, scripted: Scripted) -> None:
    scripted.script(GOOD)
    do(scripted, "generate", "a", sampling_params={"max_new_token": 3})
    assert scripted.asked[0].json()["sampling_params"] == {"max_new_token": 3}


@pytest.mark.parametrize("member", [{"session_tags": {"step": 17}}, {"tags": {"step": 17}}])
def test_tags_have_two_names(do: Either, scripted: Scripted, member: dict[str, object]) -> None:
    scripted.script(GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        do(scripted, "generate", "a", **member)
    assert scripted.asked[0].json()["session_tags"] == {"step": 17}
    with pytest.raises(ValueError, match="either tags or session_tags"):
        do(scripted, "generate", "a", tags={"step": 17}, session_tags={"step": 18})


@pytest.mark.parametrize("tags", ["step=3", "", ["step"], 3])
@pytest.mark.parametrize(("method", "args"), [("generate", ["a"]), ("stream", ["a"]), ("set_tags", ["run-1"])])
def test_tags_are_a_mapping(do: Either, scripted: Scripted, method: str, args: list[str], tags: object) -> None:
    with pytest.raises(
        ValueError, match=r'tags is a mapping of names to values, such as \{"step": 3\}, not '
    ) as raised:
        do(scripted, method, *args, tags=tags)
    assert str(raised.value).endswith(f"not {tags!r}")
    assert not scripted.asked


@pytest.mark.parametrize("value", [False, None])
def test_a_call_without_a_stream_may_say_so(do: Either, scripted: Scripted, value: object) -> None:
    scripted.script(GOOD)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        do(scripted, "generate", "a", stream=value)
        do(scripted, "generate_batch", "a", stream=value)
    assert ["stream" in asked.json() for asked in scripted.asked] == [False, False]


def test_a_stream_is_named_by_its_method(do: Either, scripted: Scripted) -> None:
    for method, value in (("generate", True), ("generate_batch", True), ("stream", False)):
        with pytest.raises(ValueError, match="use stream"):
            do(scripted, method, "a", stream=value)
    assert not scripted.asked


def test_each_name_has_one_meaning() -> None:
    assert not SAMPLING & REQUEST
    assert not ARGUMENTS & (SAMPLING | REQUEST)
    assert not ALIASES.keys() & (SAMPLING | REQUEST | ARGUMENTS)
    assert set(ALIASES.values()) <= SAMPLING | REQUEST | ARGUMENTS
