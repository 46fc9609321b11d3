"""New weights for the engine, through a directory it can read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..call import Call, Reply, encoded
from ..client import Client
from ..errors import ConnectionFailed, HttpError, TokentapError
from ..retry import of_change

# Writes the parameters that tunix hands over, and the version they get, as a checkpoint that the engine can load;
# returns the directory as the engine sees it.
Saver = Callable[[Any, int], "str | os.PathLike[str]"]

NO_SAVER = (
    "update_params: the engine is another process, and no `saver` was given to write the weights where it can load "
    "them; going on would sample from the weights of before"
)
NO_ROUTE = (
    "the engine has no /update_weights_from_disk; sglang-jax has no route at all that changes weights, so its HTTP "
    "server can be sampled from but not trained with"
)


NO_KEY = "an engine with --api-key wants that key on tokentap's control port too: Client(control_token=...)"
UNKNOWN = (
    "whether the engine loaded them is not known; update again before sampling, which loads them under this number"
)
UNNAMED = "the engine loaded them, but tokentap was not told their number; update again before sampling, or set_policy"


class WeightsNotUpdated(RuntimeError):
    """Engine, tokentap and trainer do not all have the same weights; the message says what is known and what to do."""


def publish(client: Client, path: str | os.PathLike[str], version: int) -> int:
    """Loads the checkpoint at `path` under this version and returns tokentap's policy epoch; WeightsNotUpdated.

    After a failure it may be called again with the same version.
    """
    about = f"weights of version {version} at {os.fspath(path)!r}"
    body = encoded({"model_path": os.fspath(path), "weight_version": str(version)})
    call: Call[Any] = Call("POST", "/update_weights_from_disk", Reply.json, body, again=of_change)
    try:
        answer = client.send(call)
    except TokentapError as error:
        raise WeightsNotUpdated(f"{about}: {known(error)}: {error}") from error
    # SGLang says it in the body as well
    if not isinstance(answer, dict) or answer.get("success") is not True:
        raise WeightsNotUpdated(f"{about}: the engine refused to load them: {answer}")
    try:
        # the engine's label alone would do for a label; by this tokentap knows the number as the trainer's own
        return client.set_policy(version)
    except TokentapError as error:
        raise WeightsNotUpdated(f"{about}: {UNNAMED}: {error}") from error


def known(error: TokentapError) -> str:
    """What a failed load says about the engine."""
    if isinstance(error, HttpError):
        if error.status in (404, 405):
            return NO_ROUTE
        if error.status in (401, 403):
            return NO_KEY
        # a gateway that lost the engine
        return UNKNOWN if error.status in (502, 504) else "the engine refused to load them"
    if isinstance(error, ConnectionFailed) and not error.sent:
        return "the engine was not asked"
    return UNKNOWN
