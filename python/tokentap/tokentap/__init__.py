# SPDX-License-Identifier: Apache-2.0
"""Client of tokentap: generation with the policy's entropy, trajectories, and adapters for trainers.

`serve` and `demo` start the binary.
"""

from importlib import metadata as _metadata

# first: another product's files may be mixed with those of this package
from . import _conflict  # noqa: F401

# isort: split
from ._aio import AsyncClient
from ._archive import archived_images, dataset
from ._client import Client
from ._columns import Column, columns
from ._errors import (
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
from ._generation import Generation
from ._options import AdvantageOptions, Exclusion, Format, SampleAdvantages, SampleOptions, TeacherOptions
from ._samples import Batch, Samples
from ._server import Server, demo, serve
from ._stream import Delta
from .images import Image, SpanMismatch, UnknownSettings

# a traceback names the public module
for _error in (
    BinaryNotFound,
    ConnectionFailed,
    ContextLengthExceeded,
    HttpError,
    Interrupted,
    StartFailed,
    Throttled,
    TokentapError,
    Undecodable,
):
    _error.__module__ = __name__

try:
    __version__ = _metadata.version("tokentap-sidecar")
except _metadata.PackageNotFoundError:
    # imported from its source
    __version__ = "unknown"

__all__ = [
    "AdvantageOptions",
    "AsyncClient",
    "Batch",
    "BinaryNotFound",
    "Client",
    "Column",
    "ConnectionFailed",
    "ContextLengthExceeded",
    "Delta",
    "Exclusion",
    "Format",
    "Generation",
    "HttpError",
    "Image",
    "Interrupted",
    "SampleAdvantages",
    "SampleOptions",
    "Samples",
    "Server",
    "SpanMismatch",
    "StartFailed",
    "TeacherOptions",
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
