"""Numbers that have to be the same, not nearly the same."""

from __future__ import annotations

from typing import Any

import numpy as np


def same_bits(mine: Any, others: Any) -> bool:
    """Whether both are the same float32 numbers, bit by bit."""
    return np.asarray(mine, np.float32).tobytes() == np.asarray(others, np.float32).tobytes()
