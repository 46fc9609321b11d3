# SPDX-License-Identifier: Apache-2.0
"""Reads an archive of finished trajectories with DuckDB. Needs duckdb; s3:// also needs its extension httpfs.

tokentap serve --archive file:///data/rollouts
python archive_duckdb.py file:///data/rollouts [CURSOR]
"""

from __future__ import annotations

import sys

import duckdb

import tokentap

QUERY = """
    select count(*), sum(list_sum(loss_mask)), any_value(policy_label)
    from read_parquet($files, hive_partitioning = true)
"""


def main(uri: str, since: str | None = None) -> None:
    """Prints the number of rows and of trained tokens after the cursor, and the cursor after them."""
    rows = trained = 0
    for files, cursor in tokentap.dataset(uri, since):
        count, tokens, _label = duckdb.execute(QUERY, {"files": files}).fetchall()[0]
        rows += count
        trained += int(tokens)
        since = cursor
    print(f"{rows} rows, {trained} trained tokens, cursor {since}")


if __name__ == "__main__":
    main(*sys.argv[1:])
