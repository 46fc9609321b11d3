# SPDX-License-Identifier: Apache-2.0
"""Token columns of a row: numbers about each token beyond ids, logprobs and entropies."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import TYPE_CHECKING, Any

from ._brief import Brief
from ._safetensors import NUMPY, SIZES

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, repr=False)
class Column(Brief):
    """One value, or several, for each of some tokens of a row."""

    name: str
    # The type of the values: `u8` to `u64`, `i8` to `i64`, `f16`, `bf16`, `f32`, `f64`.
    type: str
    # The positions of the tokens that have values, ascending.
    positions: list[int]
    # The dimensions of the values of a token; None if each token has another number of values.
    shape: tuple[int, ...] | None
    # The values, little-endian, token after token; without a shape after the number of values of each token, as uint32.
    data: bytes = field(repr=False)

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Column:
        """The column of an entry of `columns`; raises ValueError if its data do not fit its description."""
        data = entry["data"]
        if isinstance(data, str):
            data = base64.b64decode(data, validate=True)
        positions = [at for tokens in entry["tokens"] for at in range(tokens["start"], tokens["end"])]
        shape = None if entry["shape"] is None else tuple(entry["shape"])
        column = cls(entry["name"], entry["type"], positions, shape, bytes(data))
        column._check()
        return column

    def _check(self) -> None:
        size = SIZES.get(self.type.upper())
        if size is None:
            raise ValueError(f"{self.name} is of the unknown type {self.type}")
        expected = len(self.positions) * prod(self.shape) * size if self.shape is not None else self._ragged(size)
        if len(self.data) != expected:
            raise ValueError(f"{self.name} has {len(self.data)} bytes, not {expected}")

    def _ragged(self, size: int) -> int:
        counts = memoryview(self.data)[: 4 * len(self.positions)]
        total = sum(int.from_bytes(counts[at : at + 4], "little") for at in range(0, len(counts), 4))
        return 4 * len(self.positions) + total * size

    def numpy(self) -> NDArray[Any] | list[NDArray[Any]]:
        """An array `[tokens, *shape]`, or an array for each token if there is no shape; needs numpy.

        numpy has no bfloat16: such values become float32, which holds them exactly.
        """
        import numpy as np

        kind = self.type.upper()
        before = 0 if self.shape is not None else 4 * len(self.positions)
        flat: NDArray[Any] = np.frombuffer(self.data, dtype=NUMPY[kind], offset=before)
        if kind == "BF16":
            flat = (flat.astype(np.uint32) << np.uint32(16)).view(np.float32)
        if self.shape is not None:
            return flat.reshape(len(self.positions), *self.shape)
        counts = np.frombuffer(self.data, dtype="<u4", count=len(self.positions))
        return list(np.split(flat, np.cumsum(counts)[:-1])) if self.positions else []


def columns(row: Mapping[str, Any]) -> list[Column]:
    """The token columns of a row of `jsonl`, `arrow`, `parquet` or of `trajectories`.

    A name occurs twice if its type or its shape changes along the row.
    """
    return [Column.of(entry) for entry in row.get("columns") or ()]
