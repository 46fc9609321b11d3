# SPDX-License-Identifier: Apache-2.0
"""The types of the reply of `trajectories`."""

import inspect
import json
import urllib.request
from typing import Any

import pytest
from conftest import Demo

from tokentap import trajectories

TYPES = [kind for _, kind in inspect.getmembers(trajectories, inspect.isclass) if hasattr(kind, "__total__")]


@pytest.fixture(scope="module")
def schemas(demo: Demo) -> dict[str, Any]:
    with urllib.request.urlopen(f"{demo.control}/openapi.json") as reply:
        found: dict[str, Any] = json.load(reply)["components"]["schemas"]
    found["Trajectories"] = found["TrajectoryList"]
    # two have no name there
    found["LeftOutPath"] = found["Trajectories"]["properties"]["refused"]["items"]
    found["MissingColumn"] = found["Turn"]["properties"]["missing_columns"]["items"]
    return found


@pytest.mark.parametrize("kind", TYPES, ids=lambda kind: kind.__name__)
def test_members_are_those_of_the_schema(kind: Any, schemas: dict[str, Any]) -> None:
    schema = schemas[kind.__name__]
    assert list(kind.__annotations__) == list(schema["properties"])
    present = [name for name, text in kind.__annotations__.items() if "NotRequired[" not in str(text)]
    assert present == [name for name in schema["properties"] if name in schema.get("required", [])]


def test_every_type_is_checked() -> None:
    assert len(TYPES) == 12
