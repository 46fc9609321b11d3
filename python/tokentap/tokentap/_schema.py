# SPDX-License-Identifier: Apache-2.0
"""The columns of rows, so that tables of `jsonl` have the types of `arrow` and `parquet`, also without rows."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow

# The version of the schema that these are.
VERSION = 2

# The members of docs/reference/export-schema.md.
MEMBERS: dict[str, str] = {
    path: kind
    for line in """
schema_version: int64
row_key: string
session: string
version: int64
leaf: int64
labels: optional string
tags: optional string
token_ids: list of int32
loss_mask: list of int8
logprobs: list of optional float32
entropy: list of optional float32
prompt_length: int64
response_length: int64
segments: list of objects
segments[].turn: int64
segments[].kind: string
segments[].start: int64
segments[].end: int64
segments[].loss_mask: int8
policy: list of objects
policy[].start: int64
policy[].end: int64
policy[].epoch: int64
policy[].until: int64
policy[].weight_version: optional string
policy[].version: optional string
policy[].process: optional string
policy[].adapter: optional string
policy[].adapter_epoch: optional int64
policy[].adapter_until: optional int64
policy[].adapter_version: optional string
columns: list of objects
columns[].name: string
columns[].type: string
columns[].tokens: list of objects
columns[].tokens[].start: int64
columns[].tokens[].end: int64
columns[].shape: optional list of int64
columns[].data: bytes
images: list of objects
images[].sha256: string
images[].media_type: string
images[].bytes: int64
images[].start: int64
images[].end: int64
images[].turn: int64
images[].available: boolean
image_settings: optional string
image_data: optional list of bytes
finish_reason: optional string
flags: list of string
reward: optional float64
reward_json: optional string
incomplete: boolean
model: string
started_ms: int64
elapsed_ms: int64
advantages: optional list of float32
think_entropy_mean: optional float64
think_token_count: optional int64
think_closed: optional boolean
high_entropy_share: optional float64
prompt_text: optional string
response_text: optional string
turns: list of objects
turns[].id: int64
turns[].parent: optional int64
turns[].rid: optional string
turns[].index: int64
turns[].cause: string
turns[].predecessor: optional int64
turns[].reply_changes: list of string
turns[].finish_reason: optional string
turns[].fault: optional string
turns[].trained: boolean
turns[].reward: optional float64
turns[].reward_json: optional string
turns[].supersedes: list of int64
turns[].entropy_source: optional string
turns[].entropy_estimator: optional string
turns[].entropy_top_k: optional int64
turns[].entropy_reason: optional string
turns[].temperature: optional float64
turns[].sampling: optional string
turns[].sampling_sources: optional string
turns[].model: string
turns[].lora_path: optional string
turns[].started_ms: int64
turns[].first_ms: optional int64
turns[].elapsed_ms: int64
turns[].cached_tokens: optional int64
turns[].labels: optional object
turns[].labels.dialect: optional string
turns[].labels.client: optional string
turns[].labels.agent: optional string
turns[].labels.agent_type: optional string
turns[].labels.parent_agent: optional string
turns[].labels.thread: optional string
turns[].labels.request_class: optional string
turns[].labels.effort: optional string
turns[].labels.attribution: optional string
turns[].labels.after_compaction: optional boolean
turns[].missing_columns: list of objects
turns[].missing_columns[].name: string
turns[].missing_columns[].reason: string
turns[].extras: optional string
""".strip().splitlines()
    for path, _, kind in [line.partition(": ")]
}

# The columns whose objects may have members that this version does not know.
NESTED = {path.split("[")[0] for path in MEMBERS if "[]." in path}

# The columns with bytes, which JSON has in base64.
BINARY = {path.split("[")[0] for path, kind in MEMBERS.items() if kind.endswith("bytes")}


def table(rows: Sequence[Mapping[str, Any]]) -> pyarrow.Table:
    """The rows of `jsonl` as a table. Members that the schema lacks have inferred types.

    So have all members of rows of another version, because a member may have another meaning there.
    """
    import pyarrow

    if any(row.get("schema_version") != VERSION for row in rows):
        return pyarrow.Table.from_pylist(rows)
    known = {field.name: field for field in _fields("")}
    arrays, fields = [], []
    for name in dict.fromkeys([*known, *(name for row in rows for name in row)]):
        values = [row.get(name) for row in rows]
        field = known.get(name) or pyarrow.field(name, pyarrow.infer_type(values))
        if name in NESTED:
            field = field.with_type(_merged(field.type, pyarrow.infer_type(values)))
        if name in BINARY:
            values = [_decoded(value, field.type) for value in values]
        arrays.append(pyarrow.array(values, field.type))
        fields.append(field)
    return pyarrow.Table.from_arrays(arrays, schema=pyarrow.schema(fields))


def _fields(before: str) -> list[pyarrow.Field]:
    """The fields whose paths are `before` and a name."""
    import pyarrow

    found = []
    for path, kind in MEMBERS.items():
        name = path.removeprefix(before)
        if path.startswith(before) and "." not in name:
            is_optional = kind.startswith("optional ")
            found.append(pyarrow.field(name, _type(kind.removeprefix("optional "), path), is_optional))
    return found


def _type(kind: str, path: str) -> pyarrow.DataType:
    import pyarrow

    if kind.startswith("list of "):
        item = kind.removeprefix("list of ")
        inner = _type(item.removeprefix("optional "), f"{path}[]")
        return pyarrow.list_(pyarrow.field("item", inner, item.startswith("optional ")))
    if kind in ("object", "objects"):
        return pyarrow.struct(_fields(f"{path}."))
    return pyarrow.type_for_alias({"boolean": "bool", "bytes": "binary"}.get(kind, kind))


def _merged(known: pyarrow.DataType, found: pyarrow.DataType) -> pyarrow.DataType:
    """The known type, and in its objects also the members that were found in values."""
    import pyarrow
    from pyarrow.types import is_list, is_struct

    if is_list(known) and is_list(found):
        item = known.value_field
        return pyarrow.list_(item.with_type(_merged(item.type, found.value_type)))
    if is_struct(known) and is_struct(found):
        there = {field.name: field for field in found}
        fields = [
            field.with_type(_merged(field.type, there[field.name].type)) if field.name in there else field
            for field in known
        ]
        names = {field.name for field in known}
        return pyarrow.struct([*fields, *(field for field in found if field.name not in names)])
    return known


def _decoded(value: Any, kind: pyarrow.DataType) -> Any:
    """The value with bytes in place of base64."""
    from pyarrow.types import is_binary, is_list, is_struct

    if value is None:
        return None
    if is_binary(kind):
        return base64.b64decode(value, validate=True)
    if is_list(kind):
        return [_decoded(item, kind.value_type) for item in value]
    if is_struct(kind):
        return {name: _decoded(item, kind.field(name).type) for name, item in value.items()}
    return value
