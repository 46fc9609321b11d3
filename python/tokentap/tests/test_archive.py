# SPDX-License-Identifier: Apache-2.0
"""The archive of a running tokentap, read with `tokentap.dataset`."""

from __future__ import annotations

import base64
import json
import logging
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import binary, running

import tokentap
from tokentap import Client, Image
from tokentap._archive import _encode
from tokentap.images import RowImages

FULL_AT_ONCE = ("--archive-bytes", "1")


def sessions(uri: str, prefix: str, count: int, *flags: str) -> list[str]:
    """Records sessions that a tokentap archives until it ends, each path in its own manifest; returns their names."""
    names = [f"{prefix}-{at}" for at in range(count)]
    with running("--archive", uri, *FULL_AT_ONCE, *flags) as demo, Client(demo.data, demo.control, retries=0) as client:
        for name in names:
            client.generate("The sea", session=name, sampling_params={"max_new_tokens": 4}, done=True)
    return names


def manifests(folder: Path) -> list[dict[str, Any]]:
    """All manifests of a folder, by their names."""
    return [json.loads(path.read_text()) for path in sorted(folder.glob("manifest/*/*/*.json"))]


def read(uri: str, since: str | None = None) -> tuple[list[str], str | None]:
    """All files after a cursor, and the last cursor."""
    found: list[str] = []
    for files, cursor in tokentap.dataset(uri, since):
        found += files
        since = cursor
    return found, since


@pytest.fixture
def archive(tmp_path: Path) -> tuple[Path, str]:
    """An archive of two processes, each with a chain of six manifests."""
    folder = tmp_path / "archive"
    uri = f"file://{folder}"
    sessions(uri, "first", 6)
    sessions(uri, "second", 6)
    verified = subprocess.run([binary(), "archive", "verify", uri], capture_output=True, text=True, check=True)
    assert verified.stdout.startswith("12 manifests, 12 files, 12 rows, "), verified.stdout
    return folder, uri


def test_each_file_is_read_once_whenever_the_reader_restarts(archive: tuple[Path, str]) -> None:
    folder, uri = archive
    every = sorted(str(path) for path in folder.glob("data/*/*.parquet"))
    assert len(every) == 12
    assert sorted(read(uri)[0]) == every
    for stops in (1, 2, 5, 11):
        found: list[str] = []
        cursor: str | None = None
        while True:
            steps = 0
            for files, after in tokentap.dataset(uri, cursor):
                found += files
                cursor = after
                steps += 1
                if steps == stops:
                    # the process ends here, and the next one has only the cursor
                    break
            if steps == 0:
                break
        assert sorted(found) == every, f"a restart after {stops} steps"


def test_the_reader_continues_with_what_was_added(archive: tuple[Path, str]) -> None:
    folder, uri = archive
    seen, cursor = read(uri)
    assert read(uri, cursor) == ([], cursor)
    sessions(uri, "third", 2)
    more, _ = read(uri, cursor)
    assert len(more) == 2
    assert not set(more) & set(seen)
    assert read(str(folder), cursor)[0] == more, "a folder without a scheme"


def test_a_manifest_is_not_read_before_the_one_that_it_follows(archive: tuple[Path, str]) -> None:
    folder, uri = archive
    chain = sorted(folder.glob("manifest/*/*/*.json"))[:6]
    hidden = chain[3].read_bytes()
    chain[3].unlink()
    found, cursor = read(uri)
    assert len(found) == 3 + 6, "the chain up to the missing manifest, and the other chain"
    chain[3].write_bytes(hidden)
    assert len(read(uri, cursor)[0]) == 3, "the rest of the chain"


def test_deleted_manifests_are_an_error_for_a_cursor_before_them(archive: tuple[Path, str], caplog: Any) -> None:
    folder, uri = archive
    _, early = next(iter(tokentap.dataset(uri)))
    chain = sorted(folder.glob("manifest/*/*/*.json"))[:6]
    for path in chain[:3]:
        path.unlink()
    with pytest.raises(LookupError, match="were deleted"):
        read(uri, early)
    with caplog.at_level(logging.WARNING, "tokentap"):
        assert len(read(uri)[0]) == 9
    assert "are missing" in caplog.text


def test_missed_trajectories_are_logged(archive: tuple[Path, str], caplog: Any) -> None:
    folder, uri = archive
    path = sorted(folder.glob("manifest/*/*/*.json"))[0]
    manifest = json.loads(path.read_text())
    manifest["missed"] = [{"last": manifest["last"], "count": 7, "reason": "evicted", "session": "s"}]
    path.write_text(json.dumps(manifest))
    with caplog.at_level(logging.WARNING, "tokentap"):
        assert len(read(uri)[0]) == 12
    assert "7 trajectories were gone" in caplog.text


def test_an_unknown_cursor_or_version_is_refused(archive: tuple[Path, str]) -> None:
    folder, uri = archive
    for cursor in ("", "x", "e30", _encode({})[:-3]):
        with pytest.raises(ValueError, match="cursor"):
            read(uri, cursor)
    path = sorted(folder.glob("manifest/*/*/*.json"))[0]
    # the members of another version may be others
    later = base64.urlsafe_b64encode(b'{"version": 2, "positions": {}}').decode().rstrip("=")
    with pytest.raises(ValueError, match="has version 2, and this module reads 1"):
        read(uri, later)
    path.write_text('{"archive_version": 2, "files": {}}')
    with pytest.raises(ValueError, match="json has archive_version 2, and this module reads 1"):
        read(uri)
    with pytest.raises(ValueError, match="filesystem="):
        read("az://container/prefix")


def test_an_empty_archive_has_no_files(tmp_path: Path) -> None:
    assert read(f"file://{tmp_path}") == ([], None)
    assert read(f"file://{tmp_path}/absent") == ([], None)
    shutil.rmtree(tmp_path)


def test_pictures_of_rows_are_read_from_the_archive(tmp_path: Path) -> None:
    picture = Image(b"\x89PNG\r\n\x1a\n and more")
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / picture.sha256).write_bytes(picture.data)
    reference = {"sha256": picture.sha256, "media_type": "image/png", "bytes": len(picture.data), "start": 1, "end": 3}
    row = {"session": "s", "images": [{**reference, "turn": 0, "available": True}], "image_settings": None}
    for uri in (f"file://{tmp_path}", str(tmp_path)):
        assert RowImages.of(row).load(tokentap.archived_images(uri)) == [picture]
    (tmp_path / "blobs" / picture.sha256).write_bytes(b"other")
    with pytest.raises(ValueError, match="has the digest"):
        RowImages.of(row).load(tokentap.archived_images(str(tmp_path)))
    with pytest.raises(LookupError, match=f"picture {'0' * 64} of session 's' is not in "):
        tokentap.archived_images(str(tmp_path))("s", "0" * 64)
