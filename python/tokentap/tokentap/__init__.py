"""Client of tokentap: generation with the policy's entropy, trajectories, and adapters for trainers."""

from .aio import AsyncClient
from .archive import dataset
from .client import Client
from .errors import (
    ConnectionFailed,
    ContextLengthExceeded,
    HttpError,
    Interrupted,
    Throttled,
    TokentapError,
    Undecodable,
)
from .generation import Generation
from .samples import Batch, Samples
from .stream import Delta

__all__ = [
    "AsyncClient",
    "Batch",
    "Client",
    "ConnectionFailed",
    "ContextLengthExceeded",
    "Delta",
    "Generation",
    "HttpError",
    "Interrupted",
    "Samples",
    "Throttled",
    "TokentapError",
    "Undecodable",
    "dataset",
]
