# SPDX-License-Identifier: Apache-2.0
"""prompts.py OUT.parquet COUNT SEED   writes sums of python/examples/train as prompts of verl."""

from __future__ import annotations

import sys

import pyarrow
from pyarrow import parquet
from sums import sums


def main(out: str, count: str, seed: str) -> None:
    """A row for each sum, in order."""
    rows = [
        {
            "data_source": "sums",
            "prompt": [{"role": "user", "content": one.prompt}],
            "reward_model": {"style": "rule", "ground_truth": str(one.answer)},
            "extra_info": {"index": at},
        }
        for at, one in enumerate(sums(int(count), seed))
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), out)


if __name__ == "__main__":
    main(*sys.argv[1:])
