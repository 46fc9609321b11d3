# SPDX-License-Identifier: Apache-2.0
"""Where the binary is searched, and which one is refused."""

from __future__ import annotations

import os
import sysconfig
from pathlib import Path

import pytest
from conftest import binary

import tokentap
from tokentap import BinaryNotFound
from tokentap._binary import check, find

OURS = "tokentap 1.2.3"


def executable(folder: Path, prints: str = OURS, code: int = 0) -> Path:
    """A `tokentap` that prints a version."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "tokentap"
    path.write_text(f"#!/bin/sh\necho '{prints}'\nexit {code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Empty folders in place of those that are searched."""
    folders = {name: tmp_path / name for name in ("given", "variable", "scripts", "user", "path")}
    monkeypatch.delenv("TOKENTAP_BIN", raising=False)
    monkeypatch.setenv("PATH", str(folders["path"]))

    def get_path(name: str, scheme: str | None = None) -> str:
        assert name == "scripts"
        return str(folders["scripts" if scheme is None else "user"])

    monkeypatch.setattr(sysconfig, "get_path", get_path)
    return folders


def test_the_binary_is_searched_in_the_documented_order(
    places: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("path", "user", "scripts"):
        made = executable(places[name])
        assert find() == made
    variable = executable(places["variable"])
    monkeypatch.setenv("TOKENTAP_BIN", str(variable))
    assert find() == variable
    given = executable(places["given"])
    assert find(given) == find(str(given)) == given


def test_the_error_names_every_place_that_was_searched(places: dict[str, Path]) -> None:
    with pytest.raises(BinaryNotFound) as raised:
        find()
    message = str(raised.value)
    for expected in ("TOKENTAP_BIN", str(places["scripts"]), str(places["user"]), str(places["path"]), "binary="):
        assert expected in message


def test_a_given_path_that_does_not_exist_is_an_error(places: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    executable(places["scripts"])
    absent = places["given"] / "absent"
    with pytest.raises(BinaryNotFound, match=r"absent .*binary="):
        find(absent)
    monkeypatch.setenv("TOKENTAP_BIN", str(absent))
    with pytest.raises(BinaryNotFound, match=r"absent .*TOKENTAP_BIN"):
        find()
    file = executable(places["given"])
    file.chmod(0o644)
    with pytest.raises(BinaryNotFound, match="not an executable file"):
        find(file)


@pytest.mark.parametrize(
    ("prints", "code"), [("tokentap, version 0.3.1", 0), ("0.3.1", 0), ("usage: tokentap", 2), (OURS, 1), ("", 0)]
)
@pytest.mark.parametrize("place", ["scripts", "user", "path"])
def test_a_foreign_tokentap_is_refused(places: dict[str, Path], place: str, prints: str, code: int) -> None:
    path = executable(places[place], prints, code)
    with pytest.raises(BinaryNotFound) as raised:
        tokentap.demo().start()
    message = str(raised.value)
    assert f"{path} (" in message
    assert "another program" in message
    assert repr(prints) in message


def test_a_file_that_cannot_be_run_is_refused(places: dict[str, Path]) -> None:
    path = executable(places["scripts"])
    path.write_bytes(b"\x7fELF of another machine")
    with pytest.raises(BinaryNotFound, match="cannot be run"):
        find()


def test_the_version_of_the_built_binary_is_accepted() -> None:
    version = check(Path(binary()), "TOKENTAP_BIN")
    assert version.split(".")[0].isdigit()
    assert os.access(binary(), os.X_OK)
