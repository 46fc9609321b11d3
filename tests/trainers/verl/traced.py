# SPDX-License-Identifier: Apache-2.0
"""A generation in verl's rollout trace."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import resumed
from account import Account
from verl.utils.rollout_trace import RolloutTraceConfig


class Tracer:
    """The part of trackio that verl uses; `logged` has the names and the traces."""

    def __init__(self) -> None:
        self.logged: dict[str, Any] = {}

    def Trace(self, messages: Any, metadata: dict[str, Any]) -> dict[str, Any]:
        """The trace of the call."""
        return metadata

    def log(self, traces: dict[str, Any], step: int | None) -> None:
        """Records the traces."""
        self.logged |= traces


def check(account: Account) -> None:
    """The trace has the prompt and the sampled tokens, as with verl's own client."""
    tracer = Tracer()
    with patch.multiple(RolloutTraceConfig.get_instance(), backend="trackio", client=tracer):
        resumed.generate(resumed.Scripted([resumed.reply([7, 8], "4", "stop")]), resume=False)
    traced = [(trace["inputs"]["prompt_ids"], trace["output"]["token_ids"]) for trace in tracer.logged.values()]
    account.check("traced like verl's client", [] if traced == [(resumed.PROMPT, [7, 8])] else [f"{tracer.logged}"])
