# SPDX-License-Identifier: Apache-2.0
"""The types of options are those of the requests in `/openapi.json`."""

import json
import typing
import urllib.request
from typing import Any, get_args, get_type_hints

import pytest
from conftest import Demo

from tokentap._options import AdvantageOptions, Class, Estimator, Format, SampleOptions, TeacherOptions


@pytest.fixture(scope="module")
def schemas(demo: Demo) -> dict[str, Any]:
    with urllib.request.urlopen(f"{demo.control}/openapi.json") as reply:
        found: dict[str, Any] = json.load(reply)["components"]["schemas"]
    return found


def values(hint: Any) -> list[str]:
    """The values of a literal, also of one in a list, without None."""
    if typing.get_origin(hint) is typing.Literal:
        return [value for value in get_args(hint) if value is not None]
    return [value for argument in get_args(hint) for value in values(argument)]


@pytest.mark.parametrize(
    ("kind", "request_name", "arguments"),
    [
        (SampleOptions, "SamplesRequest", ["sessions", "format"]),
        (AdvantageOptions, "AdvantagesRequest", ["groups", "estimator"]),
        (TeacherOptions, "TeacherScoresRequest", ["teacher", "sessions"]),
    ],
)
def test_options_are_those_of_the_request(
    kind: Any, request_name: str, arguments: list[str], schemas: dict[str, Any]
) -> None:
    members = schemas[request_name]["properties"]
    hints = {name.removesuffix("_"): hint for name, hint in get_type_hints(kind).items()}
    assert sorted(hints) == sorted(set(members) - set(arguments))
    for name, hint in hints.items():
        member = members[name].get("items", members[name])
        enum = [value for value in member.get("enum", []) if value is not None]
        assert not enum or values(hint) == enum, name


def test_values_are_those_of_the_request(schemas: dict[str, Any]) -> None:
    assert list(get_args(Format)) == schemas["Format"]["enum"]
    assert list(get_args(Estimator)) == schemas["AdvantagesRequest"]["properties"]["estimator"]["enum"]
    assert list(get_args(Class)) == schemas["SamplesRequest"]["properties"]["classes"]["items"]["enum"]
