# SPDX-License-Identifier: Apache-2.0
"""The results of the checks, one line each."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Account:
    """Prints `ok` or `FAIL` with the name of each check; `failed` has the names of those that failed."""

    failed: list[str] = field(default_factory=list)
    passed: int = 0

    def check(self, name: str, problems: list[str], note: str = "") -> None:
        """A check passes without problems; `note` is printed with its result."""
        if problems:
            self.failed.append(name)
        else:
            self.passed += 1
        print("FAIL" if problems else "ok  ", name, f"({note})" if note else "", *problems[:5], sep="  ", flush=True)
