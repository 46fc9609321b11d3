# SPDX-License-Identifier: Apache-2.0
"""What both clients are when they are copied or printed."""

from __future__ import annotations

from functools import partial
from typing import Any


class CopyableClient:
    """A client that is copied by its settings: a copy, such as one in another process, has its own connections."""

    # The arguments of its construction.
    _settings: dict[str, Any]

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(type(self), **self._settings), ()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._settings['base_url']!r}, {self._settings['control_url']!r})"
