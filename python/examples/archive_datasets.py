# SPDX-License-Identifier: Apache-2.0
"""Reads an archive of finished trajectories with HF datasets. Needs datasets; object storage needs pyarrow and s3fs.

tokentap serve --archive file:///data/rollouts
python archive_datasets.py file:///data/rollouts [CURSOR]
"""

from __future__ import annotations

import sys

from datasets import load_dataset

import tokentap


def main(uri: str, since: str | None = None) -> None:
    """Prints the number of rows and of trained tokens after the cursor, and the cursor after them."""
    rows = trained = 0
    for files, cursor in tokentap.dataset(uri, since):
        part = load_dataset("parquet", data_files=files, split="train")
        rows += part.num_rows
        trained += sum(sum(mask) for mask in part["loss_mask"])
        since = cursor
    print(f"{rows} rows, {trained} trained tokens, cursor {since}")


if __name__ == "__main__":
    main(*sys.argv[1:])
