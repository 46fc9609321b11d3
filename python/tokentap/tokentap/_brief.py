# SPDX-License-Identifier: Apache-2.0
"""The text of values with long lists."""

from __future__ import annotations

import dataclasses
import reprlib
from typing import Any


def _short() -> reprlib.Repr:
    short = reprlib.Repr()
    short.maxlist, short.maxdict, short.maxstring, short.maxother = 4, 8, 80, 80
    return short


SHORT = _short()


class Brief:
    """A dataclass, declared with `repr=False`, whose text abbreviates long values."""

    def __repr__(self) -> str:
        fields: Any = dataclasses.fields(self)  # type: ignore[arg-type]
        shown = (f"{field.name}={SHORT.repr(getattr(self, field.name))}" for field in fields if field.repr)
        return f"{type(self).__name__}({', '.join(shown)})"
