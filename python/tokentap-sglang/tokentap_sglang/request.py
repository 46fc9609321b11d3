"""The names a request and its answer use."""

from __future__ import annotations

from typing import Any

SWITCH = "tokentap_entropy"
"""Member of `sampling_params.custom_params`. `true` asks for what the server offers, `"full"` for the full vocabulary
alone: where `TOKENTAP_ENTROPY_TOP_K` makes the server offer something else, each value is null."""

FIELD = "output_token_entropy"
"""Member of `meta_info`: nats, one entry a token of `output_ids`; null where a value is not known."""


def parse_switch(custom_params: Any) -> bool | str:
    """What a request's custom_params ask: `True`, `"full"`, or `False` for anything else."""
    value = custom_params.get(SWITCH) if isinstance(custom_params, dict) else None
    return value if value is True or value == "full" else False


def asks_for_entropy(obj: Any) -> bool:
    """Whether a request, as the tokenizer process holds it (sampling_params is still a dict there), asks."""
    params = getattr(obj, "sampling_params", None)
    return isinstance(params, dict) and parse_switch(params.get("custom_params")) is not False
