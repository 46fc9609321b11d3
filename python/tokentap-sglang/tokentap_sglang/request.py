# SPDX-License-Identifier: Apache-2.0
"""The member of a request that asks for entropies, and the member of the reply."""

from __future__ import annotations

from typing import Any

SWITCH = "tokentap_entropy"
"""Member of `sampling_params.custom_params`. `true` asks for the server's values, `"full"` for values over the full
vocabulary: if `TOKENTAP_ENTROPY_TOP_K` is set, each value is then null."""

FIELD = "output_token_entropy"
"""Member of `meta_info`: nats, one entry for each of `output_ids`; null for an unknown value."""


def parse_switch(custom_params: Any) -> bool | str:
    """The switch in a request's custom_params: `True`, `"full"`, or `False` for anything else."""
    value = custom_params.get(SWITCH) if isinstance(custom_params, dict) else None
    return value if value is True or value == "full" else False


def asks_for_entropy(obj: Any) -> bool:
    """Whether a request of the tokenizer process, whose sampling_params is still a dict, has the switch."""
    params = getattr(obj, "sampling_params", None)
    return isinstance(params, dict) and parse_switch(params.get("custom_params")) is not False
