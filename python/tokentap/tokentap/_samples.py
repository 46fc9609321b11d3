# SPDX-License-Identifier: Apache-2.0
"""Sessions in the format of a trainer, the reply of `POST /v1/samples`."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ._safetensors import File
from ._schema import table

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow
    import torch
    from numpy.typing import NDArray

Array = TypeVar("Array")

# The methods that parse a body of this type.
READERS = {
    "application/octet-stream": "numpy() or torch()",
    "application/json": "json()",
    "application/x-ndjson": "json(), arrow(), pandas() or polars()",
    "application/vnd.apache.arrow.stream": "arrow(), pandas() or polars()",
    "application/vnd.apache.parquet": "arrow(), pandas() or polars()",
}

# The tensors that the text of a batch has: `miles` has one for each row and name.
MOST_NAMES = 16


@dataclass(frozen=True, repr=False)
class Batch(Generic[Array]):
    """The rows of a format of tensors.

    `tensors` has the names that the trainer reads. For `verl` they are [B, P] for prompts, [B, R] for responses and
    [B, P+R] for both, with B rows and the padded lengths P and R in tokens; for `areal` [B, T] with T tokens of prompt
    and response; for `miles` one tensor a row. Logprobs and entropies are in nats. `non_tensor_batch` has lists with
    one entry for each row; it is empty for formats without it. `refused` lists the leaves that have no row, with the
    reason.
    """

    tensors: dict[str, Array]
    non_tensor_batch: dict[str, list[Any]]
    refused: list[dict[str, Any]]
    metadata: dict[str, str]

    def __repr__(self) -> str:
        first: list[tuple[str, Any]] = list(islice(self.tensors.items(), MOST_NAMES))
        shapes = [f"{name} {list(tensor.shape)}" for name, tensor in first]
        more = [] if len(self.tensors) <= MOST_NAMES else [f"{len(self.tensors) - MOST_NAMES:,} more tensors"]
        return f"Batch({', '.join([*shapes, *more, f'{len(self.refused):,} refused'])})"


@dataclass(frozen=True)
class Samples:
    """The body of an export; it is parsed on demand."""

    format: str
    content_type: str
    # The number of rows, and the numbers of refused leaves by reason.
    rows: int
    refused: dict[str, int]
    # The numbers of exported rows that lack routed experts, scores or rewards, by reason.
    incomplete: dict[str, int]
    body: bytes = field(repr=False)

    def json(self) -> Any:
        """The object with `samples` and `refused` of the JSON formats, such as `slime` or `trl`; a list for `jsonl`."""
        if self.content_type == "application/x-ndjson":
            return [json.loads(line) for line in self.body.splitlines()]
        if self.content_type != "application/json":
            raise self._refusal("no JSON")
        return json.loads(self.body)

    def numpy(self) -> Batch[NDArray[Any]]:
        """The tensors as arrays; needs numpy."""
        file = self._file()
        return self._batch(file, {name: tensor.numpy() for name, tensor in file.tensors.items()})

    def torch(self) -> Batch[torch.Tensor]:
        """The tensors as torch tensors on the CPU; needs torch."""
        file = self._file()
        return self._batch(file, {name: tensor.torch() for name, tensor in file.tensors.items()})

    def arrow(self) -> pyarrow.Table:
        """The rows of `jsonl`, `arrow`, `parquet` or `images` as an Arrow table; needs pyarrow.

        The first three have the same columns and types, also without rows; bytes are bytes in all of them.
        """
        if self.format == "arrow":
            import pyarrow.ipc

            return pyarrow.ipc.open_stream(self.body).read_all()
        if self.format in ("parquet", "images"):
            import pyarrow.parquet

            return pyarrow.parquet.read_table(io.BytesIO(self.body))
        if self.format == "jsonl":
            # pyarrow.json leaves out the nulls at the start of a list, so that logprobs belong to other tokens
            return table(self.json())
        raise self._refusal("no columns")

    def pandas(self) -> pandas.DataFrame:
        """The same as a pandas table; needs pyarrow and pandas."""
        return self.arrow().to_pandas()

    def polars(self) -> polars.DataFrame:
        """The same as a polars table; needs pyarrow and polars."""
        import polars

        return polars.DataFrame(self.arrow())

    def _refusal(self, lacks: str) -> ValueError:
        return ValueError(f"{self.format} has {lacks}: use {READERS.get(self.content_type, 'body')}")

    def _file(self) -> File:
        if self.content_type != "application/octet-stream":
            raise self._refusal("no tensors")
        return File.of(self.body)

    def _batch(self, file: File, tensors: dict[str, Array]) -> Batch[Array]:
        table = json.loads(file.metadata.get("non_tensor_batch", "{}"))
        return Batch(tensors, table, json.loads(file.metadata.get("refused", "[]")), file.metadata)
