# SPDX-License-Identifier: Apache-2.0
"""Reads an archive of finished trajectories with polars. Needs polars; object storage also pyarrow.

tokentap serve --archive file:///data/rollouts
python archive_polars.py file:///data/rollouts [CURSOR]
"""

from __future__ import annotations

import sys

import polars

import tokentap


def main(uri: str, since: str | None = None) -> None:
    """Prints the number of rows and of trained tokens after the cursor, and the cursor after them."""
    rows = trained = 0
    for files, cursor in tokentap.dataset(uri, since):
        part = polars.scan_parquet(files).select(
            polars.len(), polars.col("loss_mask").list.sum().sum().alias("trained")
        )
        count, tokens = part.collect().row(0)
        rows += count
        trained += int(tokens)
        since = cursor
    print(f"{rows} rows, {trained} trained tokens, cursor {since}")


if __name__ == "__main__":
    main(*sys.argv[1:])
