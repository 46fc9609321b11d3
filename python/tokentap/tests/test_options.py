# SPDX-License-Identifier: Apache-2.0
"""The types of options are those of the requests in `/openapi.json`."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import typing
import urllib.request
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest
from conftest import ROOT, Demo, Either

from tokentap import HttpError
from tokentap._options import (
    AdvantageOptions,
    Class,
    Estimator,
    Exclusion,
    Format,
    SampleAdvantages,
    SampleOptions,
    TeacherOptions,
)


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
        (SampleAdvantages, "AdvantageOptions", []),
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


def test_exclusions_are_those_of_the_server(do: Either, demo: Demo) -> None:
    with pytest.raises(HttpError, match="is not one of incomplete, ") as raised:
        do(demo, "samples", [], "jsonl", exclude=["?"])
    message = json.loads(raised.value.body)["error"]["message"]
    assert list(get_args(Exclusion)) == message.partition(" is not one of ")[2].split(", ")
    assert do(demo, "samples", [], "jsonl", exclude=get_args(Exclusion)).rows == 0


FITTING = """
from tokentap import Client

client = Client()
client.samples(None, exclude=["missing_reward", "column_missing"], advantages={"estimator": "grpo", "lambda": 0.3})
client.samples(None, "jsonl", text=True, classes=["main"], advantages={"groups": [{"id": "g", "samples": []}]})
client.advantages([], "egpo", lambda_=0.3)
"""

MISSPELT = [
    'client.samples(None, exclude=["missing_rewrd"])',
    'client.samples(None, advantages={"estimatr": "grpo"})',
    'client.samples(None, advantages={"estimator": "grop"})',
    'client.samples(None, advantages={"lambda": "0.3"})',
    'client.samples(None, "jsnl")',
    "client.samples(None, tex=True)",
    'client.samples(None, classes=["mian"])',
    'client.advantages([], "egop")',
    "client.advantages([], lamda_=0.3)",
]


def test_a_type_checker_finds_a_misspelt_option(tmp_path: Path) -> None:
    if importlib.util.find_spec("mypy") is None:
        pytest.skip("not installed here")
    file = tmp_path / "options.py"
    file.write_text(FITTING + "".join(f"{line}\n" for line in MISSPELT))
    # without the packages beside it, whose types take most of the time
    flags = ["--strict", "--no-site-packages", "--ignore-missing-imports", "--cache-dir", str(tmp_path / "cache")]
    command = [sys.executable, "-m", "mypy", *flags, str(file)]
    env = {**os.environ, "MYPYPATH": str(ROOT / "python/tokentap")}
    made = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=300)
    found = {int(line) for line in re.findall(r"^options.py:(\d+): error: ", made.stdout, re.M)}
    first = FITTING.count("\n") + 1
    assert found == set(range(first, first + len(MISSPELT))), made.stdout + made.stderr
