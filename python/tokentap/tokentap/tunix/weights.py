"""New weights for the engine, through a directory it can read."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from ..call import Call, Reply, encoded
from ..client import Client
from ..errors import HttpError
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


class WeightsNotUpdated(RuntimeError):
    """The engine does not have the weights that the trainer has; the message says why."""


def publish(client: Client, path: str | os.PathLike[str], version: int) -> int:
    """Loads the checkpoint at `path` under this version and returns tokentap's policy epoch; WeightsNotUpdated."""
    body = encoded({"model_path": os.fspath(path), "weight_version": str(version)})
    call: Call[Any] = Call("POST", "/update_weights_from_disk", Reply.json, body, again=of_change)
    try:
        client.send(call)
    except HttpError as error:
        why = NO_ROUTE if error.status in (404, 405) else "the engine refused to load them"
        raise WeightsNotUpdated(f"weights of version {version} at {os.fspath(path)!r}: {why}: {error}") from error
    # the engine's label alone would do for a label; by this tokentap knows the number as the trainer's own
    return client.set_policy(version)
