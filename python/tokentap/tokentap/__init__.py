"""Client of tokentap: generation with the policy's entropy, trajectories, and adapters for trainers.

`serve` and `demo` start the binary.
"""

from importlib.metadata import PackageNotFoundError, version

# first: another product's files may be mixed with those of this package
from . import conflict  # noqa: F401

# isort: split
from .aio import AsyncClient
from .archive import archived_images, dataset
from .client import Client
from .columns import Column, columns
from .errors import (
    BinaryNotFound,
    ConnectionFailed,
    ContextLengthExceeded,
    HttpError,
    Interrupted,
    StartFailed,
    Throttled,
    TokentapError,
    Undecodable,
)
from .generation import Generation
from .images import Image, SpanMismatch, UnknownSettings
from .samples import Batch, Format, SampleOptions, Samples
from .server import Server, demo, serve
from .stream import Delta

try:
    __version__ = version("tokentap-sidecar")
except PackageNotFoundError:
    # imported from its source
    __version__ = "unknown"

__all__ = [
    "AsyncClient",
    "Batch",
    "BinaryNotFound",
    "Client",
    "Column",
    "ConnectionFailed",
    "ContextLengthExceeded",
    "Delta",
    "Format",
    "Generation",
    "HttpError",
    "Image",
    "Interrupted",
    "SampleOptions",
    "Samples",
    "Server",
    "SpanMismatch",
    "StartFailed",
    "Throttled",
    "TokentapError",
    "Undecodable",
    "UnknownSettings",
    "__version__",
    "archived_images",
    "columns",
    "dataset",
    "demo",
    "serve",
]
