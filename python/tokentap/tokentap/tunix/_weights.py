# SPDX-License-Identifier: Apache-2.0
"""Updates the engine's weights through a directory that it can read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from .._client import Client
from .._errors import ConnectionFailed, HttpError, TokentapError

# Writes tunix's parameters, with their version, as a checkpoint that the engine can load; returns the directory as the
# engine sees it.
Saver = Callable[[Any, int], "str | os.PathLike[str]"]

NO_SAVER = (
    "update_params: the engine is another process, and no `saver` was given to write the weights where it can load "
    "them; without it the engine would sample from the earlier weights"
)
NO_ROUTE = (
    "the engine has no /update_weights_from_disk; sglang-jax has no route that changes weights, so its HTTP "
    "server can sample but cannot be updated by a trainer"
)


NO_KEY = "an engine with --api-key needs that key on tokentap's control port too: Client(control_token=...)"
UNKNOWN = "it is unknown whether the engine loaded them; update again before sampling, with the same version"
UNNAMED = "the engine loaded them, but tokentap has not recorded their version; update again, or call set_policy"


class WeightsNotUpdated(RuntimeError):
    """Engine, tokentap and trainer may have different weights; the message says what is known and what to do."""


def publish(client: Client, path: str | os.PathLike[str], version: int) -> int:
    """Loads the checkpoint at `path` under this version and returns tokentap's policy epoch; raises WeightsNotUpdated.

    After a failure it may be called again with the same version.
    """
    about = f"weights of version {version} at {os.fspath(path)!r}"
    try:
        answer = client.update_weights_from_disk(path, weight_version=version)
    except TokentapError as error:
        raise WeightsNotUpdated(f"{about}: {known(error)}: {error}") from error
    if answer.get("success") is not True:
        raise WeightsNotUpdated(f"{about}: the engine refused to load them: {answer}")
    try:
        # the engine's weight_version is only a label; this marks the number as the trainer's version
        return client.set_policy(version)
    except TokentapError as error:
        raise WeightsNotUpdated(f"{about}: {UNNAMED}: {error}") from error


def known(error: TokentapError) -> str:
    """The state of the engine after a failed load."""
    if isinstance(error, HttpError):
        if error.status in (404, 405):
            return NO_ROUTE
        if error.status in (401, 403):
            return NO_KEY
        # a gateway that lost its connection to the engine
        return UNKNOWN if error.status in (502, 504) else "the engine refused to load them"
    if isinstance(error, ConnectionFailed) and not error.sent:
        return "the engine did not get the request"
    return UNKNOWN
