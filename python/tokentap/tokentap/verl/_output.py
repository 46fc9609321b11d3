# SPDX-License-Identifier: Apache-2.0
"""An agent loop's output with the entropies of its response."""

from __future__ import annotations

from typing import Any

import torch
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

from ._batch import ENTROPY


class EntropyOutput(AgentLoopOutput):  # type: ignore[misc]
    """`extra_fields["rollout_entropy"]` is a list of nats, one for each token of the response, 0.0 where its mask is 0.

    verl's older trainer copies it into `non_tensor_batch`, and `batch.attach` moves it from there. The newer trainer
    stores what `as_dict` returns.
    """

    def as_dict(self) -> dict[str, Any]:
        """With `rollout_entropy` as float32 [response], beside `rollout_log_probs`."""
        fields: dict[str, Any] = super().as_dict()
        extra = dict(fields["extra_fields"])
        fields[ENTROPY] = torch.tensor(extra.pop(ENTROPY), dtype=torch.float32)
        fields["extra_fields"] = extra
        return fields
