# SPDX-License-Identifier: Apache-2.0
"""Reads a safetensors file in memory without the package `safetensors`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray

# Bytes of an element.
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip

NUMPY = {
    "BOOL": "?", "U8": "u1", "I8": "i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "BF16": "<u2",
    "U32": "<u4", "I32": "<i4", "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8",
}  # fmt: skip

TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "F16": "float16", "BF16": "bfloat16",
    "U32": "uint32", "I32": "int32", "F32": "float32", "U64": "uint64", "I64": "int64", "F64": "float64",
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """The elements in a separate buffer, so that they are aligned and writable."""

    dtype: str
    shape: tuple[int, ...]
    data: bytearray

    def numpy(self) -> NDArray[Any]:
        """An array over the buffer. numpy has no bfloat16: such a tensor becomes float32, which holds it exactly."""
        import numpy as np

        flat: NDArray[Any] = np.frombuffer(self.data, dtype=NUMPY[self.dtype])
        if self.dtype == "BF16":
            flat = (flat.astype(np.uint32) << np.uint32(16)).view(np.float32)
        return flat.reshape(self.shape)

    def torch(self) -> torch.Tensor:
        """A tensor over the buffer, on the CPU."""
        import torch

        dtype: torch.dtype = getattr(torch, TORCH[self.dtype])
        if not self.data:
            # frombuffer does not accept an empty buffer
            return torch.empty(self.shape, dtype=dtype)
        return torch.frombuffer(self.data, dtype=dtype).reshape(self.shape)


@dataclass(frozen=True)
class File:
    """The tensors by name, in the order of the header, and the texts of its metadata."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]

    @classmethod
    def of(cls, data: bytes) -> File:
        """Parses a file; raises ValueError for an invalid one."""
        size = int.from_bytes(data[:8], "little")
        if len(data) < 8 or size > len(data) - 8:
            raise ValueError(f"safetensors: {len(data)} bytes do not hold a header of {size}")
        header = json.loads(data[8 : 8 + size])
        metadata = header.pop("__metadata__", {})
        body = memoryview(data)[8 + size :]
        return cls({name: tensor(name, entry, body) for name, entry in header.items()}, metadata)


def tensor(name: str, entry: dict[str, Any], body: memoryview) -> Tensor:
    """The tensor of an entry of the header."""
    dtype, shape, (start, end) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
    if dtype not in SIZES:
        raise ValueError(f"safetensors: {name} is of the type {dtype}, which is not one of {', '.join(SIZES)}")
    if not 0 <= start <= end <= len(body) or end - start != prod(shape) * SIZES[dtype]:
        raise ValueError(f"safetensors: {name} is {dtype} {list(shape)}, not bytes {start} to {end} of {len(body)}")
    return Tensor(dtype, shape, bytearray(body[start:end]))


def without(data: bytes, prefix: str) -> bytes:
    """The file without the tensors whose names begin with `prefix`."""
    size = int.from_bytes(data[:8], "little")
    header: dict[str, Any] = json.loads(data[8 : 8 + size])
    body, parts, start = memoryview(data)[8 + size :], [], 0
    kept = {name: entry for name, entry in header.items() if not name.startswith(prefix)}
    for name, entry in kept.items():
        if name != "__metadata__":
            part = body[entry["data_offsets"][0] : entry["data_offsets"][1]]
            entry["data_offsets"] = [start, start + len(part)]
            start += len(part)
            parts.append(part)
    text = json.dumps(kept, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])
