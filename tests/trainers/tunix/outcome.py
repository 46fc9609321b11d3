# SPDX-License-Identifier: Apache-2.0
"""The checks of the programs in this directory, one line each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

# The name of a check, and a function that returns figures or fails an assertion.
Check = tuple[str, Callable[[], object]]


def outcome(*checks: Check) -> int:
    """Runs the checks in order and prints `ok` or `FAIL`; returns the exit status."""
    failed = 0
    for title, check in checks:
        try:
            print(f"ok   {title}: {check()}", flush=True)
        except AssertionError as error:
            failed += 1
            print(f"FAIL {title}: {error}", flush=True)
    return min(failed, 1)


def same_bits(mine: Any, others: Any) -> bool:
    """Whether both are the same float32 numbers, bit by bit."""
    return np.asarray(mine, np.float32).tobytes() == np.asarray(others, np.float32).tobytes()
