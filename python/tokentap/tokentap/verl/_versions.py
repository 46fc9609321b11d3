# SPDX-License-Identifier: Apache-2.0
"""The versions of the weights that sampled a response, as verl's global steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def of_reply(meta_info: Mapping[str, Any]) -> list[int]:
    """The versions of a reply's `weight_versions`, or its `weight_version`, in order; empty unless all are numbers."""
    spans = meta_info.get("weight_versions") or [{"version": meta_info.get("weight_version")}]
    return numbers(span.get("version") for span in spans)


def numbers(names: Iterable[object]) -> list[int]:
    """Versions as numbers; empty if one is not a number, because then not all are known."""
    found: list[int] = []
    for name in names:
        text = str(name)
        if not text.isdecimal():
            return []
        found.append(int(text))
    return found


def steps(seen: Iterable[int], step: int | None) -> dict[str, int | None]:
    """verl's `global_steps`, `min_global_steps` and `max_global_steps`; `step` is used if no version is known."""
    known = list(seen)
    if not known:
        return {"global_steps": step, "min_global_steps": step, "max_global_steps": step}
    return {"global_steps": known[-1], "min_global_steps": min(known), "max_global_steps": max(known)}
