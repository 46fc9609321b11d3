# SPDX-License-Identifier: Apache-2.0
"""Reads an archive of finished trajectories: the data files that its manifests name, each once."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

from .images import Fetch, Image

Json = dict[str, Any]

LOG = logging.getLogger("tokentap")

ARCHIVE_VERSION = 1
"""The version of the archive's layout that this module reads."""

AT_ONCE = 16
"""Manifests that are read at once when an archive is read from its beginning."""


class _Storage(Protocol):
    """Objects by their names below the archive's prefix."""

    def read(self, name: str) -> bytes | None:
        """The content of an object, or None if it does not exist."""
        ...

    def names(self, folder: str) -> list[str]:
        """The names of what is in a folder, sorted; none if it does not exist."""
        ...

    def location(self, name: str) -> str:
        """What readers of Parquet files call an object."""
        ...


class _Folder:
    """An archive in a folder."""

    def __init__(self, root: str) -> None:
        self.root = root

    def read(self, name: str) -> bytes | None:
        try:
            with open(os.path.join(self.root, name), "rb") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            return sorted(os.listdir(os.path.join(self.root, folder)))
        except FileNotFoundError:
            return []

    def location(self, name: str) -> str:
        return os.path.join(self.root, name)


class _ObjectStorage:
    """An archive in object storage, read with pyarrow."""

    def __init__(self, uri: str, filesystem: Any) -> None:
        parts = urlsplit(uri)
        self.uri = uri.rstrip("/")
        self.root = f"{parts.netloc}{unquote(parts.path)}".rstrip("/")
        self.filesystem = filesystem or _filesystem(uri, parts.scheme, parts.netloc)

    def read(self, name: str) -> bytes | None:
        try:
            with self.filesystem.open_input_file(f"{self.root}/{name}") as file:
                return bytes(file.read())
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        from pyarrow.fs import FileSelector

        selector = FileSelector(f"{self.root}/{folder}", allow_not_found=True)
        return sorted(found.base_name for found in self.filesystem.get_file_info(selector))

    def location(self, name: str) -> str:
        return f"{self.uri}/{name}"


def _filesystem(uri: str, scheme: str, bucket: str) -> Any:
    if scheme not in ("s3", "s3a", "gs"):
        raise ValueError(f"{uri}: only file://, s3:// and gs:// are opened here; for others pass filesystem=")
    try:
        from pyarrow import fs
    except ImportError:
        raise ImportError(f"reading {uri} needs pyarrow: pip install pyarrow") from None
    if scheme != "gs":
        endpoint = os.environ.get("AWS_ENDPOINT_URL")
        region = os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
        if endpoint:
            parts = urlsplit(endpoint)
            return fs.S3FileSystem(endpoint_override=parts.netloc, scheme=parts.scheme, region=region or "us-east-1")
        return fs.S3FileSystem(region=region or fs.resolve_s3_region(bucket))
    return fs.GcsFileSystem()


def _open(uri: str, filesystem: Any) -> _Storage:
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return _Folder(os.path.abspath(uri))
    if scheme == "file":
        return _Folder(rest)
    return _ObjectStorage(uri, filesystem)


def _encode(positions: dict[str, list[str]]) -> str:
    text = json.dumps({"version": 1, "chains": positions}, separators=(",", ":"), sort_keys=True)
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def _decode(cursor: str) -> dict[str, list[str]]:
    unknown = ValueError(f"since: {cursor!r} is not a cursor of a dataset")
    try:
        value = json.loads(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)))
        version = value["version"]
    except (ValueError, KeyError, TypeError):
        raise unknown from None
    # another version may have other members
    if version != 1:
        raise ValueError(
            f"since: the cursor has version {version}, and this module reads 1: use the tokentap-sidecar that made it"
        )
    try:
        return {str(name): [str(after), str(last)] for name, (after, last) in value["chains"].items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        raise unknown from None


def _manifest(storage: _Storage, name: str) -> Json | None:
    content = storage.read(name)
    if content is None:
        return None
    manifest: Json = json.loads(content)
    if manifest["archive_version"] != ARCHIVE_VERSION:
        version = manifest["archive_version"]
        raise ValueError(
            f"{name} has archive_version {version}, and this module reads {ARCHIVE_VERSION}: use the tokentap-sidecar "
            "of the build that wrote it"
        )
    return manifest


def _stems(storage: _Storage, folder: str) -> list[str]:
    """The positions that the manifests of a chain are named by."""
    return [name[: -len(".json")] for name in storage.names(folder) if name.endswith(".json")]


def _after(storage: _Storage, folder: str, known: list[str] | None) -> Iterator[Json]:
    """The manifests of a chain after those that are known, in order.

    A manifest follows the one whose `last` is its name: a listing that is read while manifests are added may lack one
    and have the next.
    """
    if known is None:
        listed = _stems(storage, folder)
        position = listed[0] if listed else ""
        with ThreadPoolExecutor(AT_ONCE) as readers:
            for at in range(0, len(listed), AT_ONCE):
                names = [f"{folder}/{stem}.json" for stem in listed[at : at + AT_ONCE]]
                for manifest in readers.map(lambda name: _manifest(storage, name), names):
                    if manifest is None or manifest["after"] != position:
                        break
                    yield manifest
                    position = manifest["last"]
                else:
                    continue
                break
        if not listed:
            return
    else:
        before, position = known
        if storage.read(f"{folder}/{before}.json") is None:
            # a later manifest was stored after the next one, which must exist then
            is_later = any(stem > position for stem in _stems(storage, folder))
            if is_later and storage.read(f"{folder}/{position}.json") is None:
                raise LookupError(f"manifests after {folder}/{before}.json were deleted: begin again without since")
    while (manifest := _manifest(storage, f"{folder}/{position}.json")) is not None:
        yield manifest
        position = manifest["last"]


def archived_images(uri: str, *, filesystem: Any = None) -> Fetch:
    """A `fetch` for the functions of `tokentap.images`: returns the pictures of the rows of an archive.

    `uri` and `filesystem` are those of `dataset`. `fetch` raises LookupError for a picture that the archive lacks.
    """
    storage = _open(uri, filesystem)

    def fetch(session: str, sha256: str) -> Image:
        content = storage.read(f"blobs/{sha256}")
        if content is None:
            raise LookupError(f"picture {sha256} of session {session!r} is not in {uri}")
        return Image(content)

    return fetch


def dataset(uri: str, since: str | None = None, *, filesystem: Any = None) -> Iterator[tuple[list[str], str]]:
    """Yields the Parquet files of an archive, those of one manifest at a time, each time with the cursor after them.

    Ends when there is nothing more, and continues there with the cursor as `since`. A caller that saves the cursor
    together with what it made of the files gets each row exactly once.

    `uri` is that of `--archive`, or a folder. Files are absolute paths or URIs. `s3://` and `gs://` need pyarrow, which
    takes the credentials from the environment; `filesystem`, a `pyarrow.fs.FileSystem`, is used instead of the one that
    is made from the URI. `az://` and others need it.

    Raises ValueError for a cursor of something else, and LookupError if manifests after the cursor were deleted.
    """
    positions = {} if since is None else _decode(since)
    storage = _open(uri, filesystem)
    for store in storage.names("manifest"):
        for part in storage.names(f"manifest/{store}"):
            chain = f"{store}/{part}"
            for manifest in _after(storage, f"manifest/{chain}", positions.get(chain)):
                if chain not in positions and not manifest["begins"]:
                    LOG.warning("%s: the manifests up to %s are missing", chain, manifest["after"])
                positions[chain] = [manifest["after"], manifest["last"]]
                counts = [missed["count"] for missed in manifest["missed"]]
                if counts:
                    missed = "an unknown number of" if None in counts else str(sum(counts))
                    LOG.warning("%s: %s trajectories were gone before they could be archived", chain, missed)
                files = [storage.location(file["path"]) for file in manifest["files"]]
                if files:
                    yield files, _encode(positions)
