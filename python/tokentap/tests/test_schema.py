# SPDX-License-Identifier: Apache-2.0
"""Tables of `jsonl` have the columns and types of `arrow` and `parquet`, also without rows."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from conftest import ROOT, Demo, Either

from tokentap import Samples
from tokentap._schema import MEMBERS, VERSION


def recorded(do: Either, demo: Demo, session: str) -> None:
    """A session with a column of bytes, and one member of each nested object."""
    more = {"return_logprob": True, "top_k": 8, "return_sampling_mask": True}
    first = do(demo, "generate", input_ids=[299, 467], session=session, max_new_tokens=4, tags={"step": 3}, **more)
    ids = [299, 467, *first.output_ids, 258]
    do(demo, "generate", input_ids=ids, session=session, max_new_tokens=4, **more)
    do(demo, "reward", session, 0.5)


def of_rows(rows: list[dict[str, Any]]) -> Samples:
    body = "".join(f"{json.dumps(row)}\n" for row in rows).encode()
    return Samples("jsonl", "application/x-ndjson", len(rows), {}, {}, body)


def test_members_are_those_of_the_page() -> None:
    page = (ROOT / "docs/reference/export-schema.md").read_text()
    rows = re.findall(r"^\| `([\w\[\].]+)` \| ([^|]+) \| (yes|no) \|", page, re.M)
    documented = {}
    for path, kind, null in rows:
        kind = re.sub("^list of (.*), or null$", r"list of optional \1", kind)
        documented[path] = f"optional {kind}" if null == "yes" else kind
    assert list(MEMBERS.items()) == list(documented.items())
    assert f"The version of the schema is {VERSION}:" in page


def test_members_are_those_of_a_row(do: Either, demo: Demo, session: str) -> None:
    recorded(do, demo, session)
    (row,) = do(demo, "samples", [session], "jsonl").json()
    assert list(row) == [path for path in MEMBERS if not re.search(r"[\[.]", path)]
    assert row["schema_version"] == VERSION


@pytest.mark.parametrize("where", ["step=3", "step=4"])
def test_a_table_of_jsonl_is_that_of_arrow(do: Either, demo: Demo, session: str, where: str) -> None:
    pytest.importorskip("pyarrow")
    recorded(do, demo, session)
    table, other = (do(demo, "samples", [session], format, where=where).arrow() for format in ("jsonl", "arrow"))
    table.validate(full=True)
    assert table.schema == other.schema.remove_metadata()
    assert table.num_rows == (1 if where == "step=3" else 0)
    assert table.equals(other.replace_schema_metadata())
    # the order of the fields of a Parquet file is the same, the names of items are not
    parquet = do(demo, "samples", [session], "parquet", where=where).arrow()
    assert table.to_pylist() == parquet.to_pylist()
    if table.num_rows:
        assert isinstance(table["columns"][0].as_py()[0]["data"], bytes)


def test_an_empty_selection_has_columns(do: Either, demo: Demo, session: str) -> None:
    pytest.importorskip("pandas")
    polars = pytest.importorskip("polars")
    recorded(do, demo, session)
    empty = do(demo, "samples", [session], "jsonl", where="step=4")
    assert empty.pandas()["reward"].dtype == "float64"
    assert empty.pandas()["reward"].tolist() == []
    assert empty.polars().schema == do(demo, "samples", [session], "parquet").polars().schema
    assert empty.polars().schema["token_ids"] == polars.List(polars.Int32)
    assert empty.polars().schema["labels"] == polars.String


def test_members_of_a_newer_server_are_kept(do: Either, demo: Demo, session: str) -> None:
    pytest.importorskip("pyarrow")
    recorded(do, demo, session)
    (row,) = do(demo, "samples", [session], "jsonl").json()
    known = of_rows([row]).arrow()
    row["newer"] = {"a": 1}
    row["turns"][1]["newer"] = "b"
    row["turns"][1]["labels"] = {**(row["turns"][1]["labels"] or {}), "newer": 2}
    table = of_rows([row]).arrow()
    (found,) = table.to_pylist()
    assert (found["newer"], found["turns"][1]["newer"], found["turns"][1]["labels"]["newer"]) == ({"a": 1}, "b", 2)
    assert found["turns"][0]["newer"] is None
    assert table.column_names == [*known.column_names, "newer"]
    assert table.drop_columns(["turns", "newer"]).equals(known.drop_columns(["turns"]))


def test_rows_of_another_version_have_inferred_types() -> None:
    pytest.importorskip("pyarrow")
    rows = [{"schema_version": VERSION + 1, "session": 7, "reward": "high"}]
    assert of_rows(rows).arrow().to_pylist() == rows
