# SPDX-License-Identifier: Apache-2.0
"""Reads an archive of finished trajectories with Ray Data. Needs ray[data].

tokentap serve --archive file:///data/rollouts
python archive_ray.py file:///data/rollouts [CURSOR]
"""

from __future__ import annotations

import sys

import ray

import tokentap


def main(uri: str, since: str | None = None) -> None:
    """Prints the number of rows and of trained tokens after the cursor, and the cursor after them."""
    every: list[str] = []
    for files, cursor in tokentap.dataset(uri, since):
        every += files
        since = cursor
    rows = trained = 0
    if every:
        ray.init(include_dashboard=False, log_to_driver=False)
        for row in ray.data.read_parquet(every, columns=["loss_mask"]).iter_rows():
            rows += 1
            trained += int(sum(row["loss_mask"]))
    print(f"{rows} rows, {trained} trained tokens, cursor {since}")


if __name__ == "__main__":
    main(*sys.argv[1:])
