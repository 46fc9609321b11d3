# SPDX-License-Identifier: Apache-2.0
"""Token columns: decoded rows against the numbers of the reply."""

from __future__ import annotations

import base64
import struct
from typing import Any

import numpy as np
import pytest
from conftest import Demo, Either

from tokentap import columns


def entry(**members: Any) -> dict[str, Any]:
    tokens = [{"start": 2, "end": 3}, {"start": 5, "end": 6}]
    return {
        "name": "c",
        "type": "u16",
        "tokens": tokens,
        "shape": [2],
        "data": struct.pack("<4H", 1, 2, 3, 4),
        **members,
    }


@pytest.mark.parametrize("format", ["jsonl", "trajectories"])
def test_masks_of_a_reply_are_a_ragged_column(do: Either, demo: Demo, session: str, format: str) -> None:
    sampling = {"max_new_tokens": 5, "top_k": 6, "temperature": 1.0, "ignore_eos": True}
    reply = do(
        demo, "generate", input_ids=[299, 467], session=session, sampling_params=sampling, return_sampling_mask=True
    )
    masks = reply.meta_info["output_token_sampling_mask"]
    if format == "jsonl":
        (row,) = do(demo, "samples", [session], format="jsonl").json()
    else:
        (row,) = do(demo, "trajectories", session)["trajectories"]
    (column,) = columns(row)
    assert (column.name, column.type, column.shape) == ("sampling_mask", "u32", None)
    assert column.positions == list(range(2, 7))
    assert [mask.tolist() for mask in column.numpy()] == masks
    assert [len(mask) for mask in masks] == [6] * 5


def test_fixed_shapes_are_one_array() -> None:
    (column,) = columns({"columns": [entry()]})
    assert column.positions == [2, 5]
    array = column.numpy()
    assert isinstance(array, np.ndarray)
    assert (array.dtype, array.tolist()) == (np.dtype("<u2"), [[1, 2], [3, 4]])
    (scalar,) = columns({"columns": [entry(shape=[], type="bf16", data=base64.b64encode(b"\x80?\x00@").decode())]})
    assert np.asarray(scalar.numpy()).tolist() == [1.0, 2.0]


def test_rows_without_columns_have_none() -> None:
    assert columns({}) == columns({"columns": []}) == columns({"columns": None}) == []


@pytest.mark.parametrize("members", [{"data": b"1"}, {"shape": None, "data": b"\1"}, {"type": "u3"}, {"shape": [3]}])
def test_data_that_do_not_fit_are_an_error(members: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"c (has|is)"):
        columns({"columns": [entry(**members)]})
