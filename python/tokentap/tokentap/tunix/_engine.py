# SPDX-License-Identifier: Apache-2.0
"""The request fields that depend on the engine."""

from __future__ import annotations

from typing import Any

from .._call import Call, Reply
from .._client import Client
from .._errors import HttpError


def logprob_fields(client: Client) -> dict[str, Any]:
    """The fields of a request for the logprobs of the sampled tokens."""
    fields: dict[str, Any] = {"return_logprob": True}
    if is_jax(client):
        # Without a k sglang-jax answers in another mode, which repeats rows and is known to end its scheduler where
        # it shares a batch with a request for no logprobs.
        fields["top_logprobs_num"] = 1
    return fields


def is_jax(client: Client) -> bool:
    """Whether the engine is sglang-jax, the only one without /model_info."""
    call: Call[Any] = Call("GET", "/model_info", Reply.json, control=False)
    try:
        client._send(call)
    except HttpError as error:
        if error.status != 404:
            raise
        return True
    return False
