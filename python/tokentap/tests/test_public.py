# SPDX-License-Identifier: Apache-2.0
"""The public names of the package are those of the table in docs/api/python.md, and no document uses another one."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import get_type_hints

import pytest
from conftest import ROOT

import tokentap
from tokentap import AsyncClient, Client, transfer_queue, verl

PACKAGE = Path(tokentap.__file__).parent
PAGE = (ROOT / "docs/api/python.md").read_text()


def modules() -> dict[str, Path]:
    """The files of the modules without an underscore."""
    found = {}
    for file in PACKAGE.rglob("*.py"):
        *names, last = file.relative_to(PACKAGE).with_suffix("").parts
        names = names if last == "__init__" else [*names, last]
        if not any(name.startswith("_") for name in names):
            found[".".join(["tokentap", *names])] = file
    return found


def exported(file: Path) -> set[str]:
    """`__all__`, read without an import, because adapters import their trainers; empty without it."""
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.Assign) and getattr(statement.targets[0], "id", None) == "__all__":
            return set(ast.literal_eval(statement.value))
    return set()


def defined(file: Path) -> set[str]:
    """The names without an underscore that a module defines; imported ones are private. pytest has names for hooks."""
    found: set[str] = set()
    for statement in ast.parse(file.read_text()).body:
        if isinstance(statement, ast.ClassDef | ast.FunctionDef):
            found.add(statement.name)
        elif isinstance(statement, ast.Assign):
            found |= {target.id for target in statement.targets if isinstance(target, ast.Name)}
    return {name for name in found if not name.startswith(("_", "pytest_"))}


PUBLIC = {module: exported(file) for module, file in modules().items()}


def documented() -> dict[str, set[str]]:
    """The names of each module in the table of the page."""
    rows = re.findall(r"^\| (`tokentap.*?) \| (.*) \|$", PAGE.split("\n## Public names\n")[1], re.M)
    return {
        module: set(re.findall(r"`(\w+)`", names))
        for listed, names in rows
        for module in re.findall(r"`(.+?)`", listed)
    }


def documents() -> list[Path]:
    """Documents and examples for users."""
    where = ["README.md", "docs/*.md", "docs/*.ipynb", "python/*.md", "python/examples/*"]
    command = ["git", "-C", str(ROOT), "ls-files", *where]
    return [ROOT / name for name in subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()]


def is_public(name: str) -> bool:
    """Whether a dotted name is a public module, a public name of one, or a member of such a name."""
    parts = name.split(".")
    module = next(".".join(parts[:end]) for end in range(len(parts), 0, -1) if ".".join(parts[:end]) in PUBLIC)
    rest = parts[module.count(".") + 1 :]
    return not rest or rest[0] in PUBLIC[module]


def test_the_page_lists_the_public_names() -> None:
    assert documented() == PUBLIC


def test_completion_offers_public_names_only() -> None:
    names = {name for name in dir(tokentap) if not name.startswith("_") or name == "__version__"}
    assert {name for name in names - PUBLIC["tokentap"] if f"tokentap.{name}" not in PUBLIC} == set()


def test_other_names_have_an_underscore() -> None:
    for module, file in modules().items():
        assert defined(file) <= PUBLIC[module] | PUBLIC["tokentap"], module


@pytest.mark.parametrize("file", documents(), ids=lambda file: str(file.relative_to(ROOT)))
def test_a_document_uses_public_names_only(file: Path) -> None:
    text = file.read_text()
    if file.suffix == ".md":
        # prose also has names of files, and of a logger
        text = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
    used = re.findall(r"(?<![\w./-])tokentap(?:\.[A-Za-z_]\w*)+", text)
    for module, names in re.findall(r"from (tokentap[\w.]*) import (\(.*?\)|[^\n\\]*)", text, re.S):
        used += [module, *(f"{module}.{name}" for name in re.findall(r"(\w+)(?: as \w+)?", names.split("#")[0]))]
    assert [name for name in used if not is_public(name)] == []


@pytest.mark.parametrize("module", ["tokentap", "tokentap.images", "tokentap.notebook", "tokentap.trajectories"])
def test_each_public_name_exists(module: str) -> None:
    assert [name for name in PUBLIC[module] if not hasattr(import_module(module), name)] == []


def test_the_lazy_names_of_verl_are_defined_where_they_are_imported_from() -> None:
    homes = verl._HOMES
    assert set(homes) == PUBLIC["tokentap.verl"]
    for name, home in homes.items():
        assert name in defined(PACKAGE / "verl" / f"{home}.py"), name


def test_both_clients_have_the_documented_methods() -> None:
    methods = {name for name in vars(Client) if not name.startswith("_")}
    assert methods == {name for name in vars(AsyncClient) if not name.startswith("_")}
    pages = PAGE + (ROOT / "python/tokentap/README.md").read_text()
    assert [name for name in methods if not re.search(rf"\b{name}\(", pages)] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="typing has no Unpack")
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_the_types_of_each_method_are_defined(kind: type) -> None:
    for name, method in vars(kind).items():
        if not name.startswith("_"):
            assert "return" in get_type_hints(method), name


def test_the_protocol_of_a_queue_is_public() -> None:
    assert get_type_hints(transfer_queue.Feeder)["queue"] is transfer_queue.Queue


def test_a_traceback_has_the_public_name_of_an_error() -> None:
    names = [name for name in tokentap.__all__ if name.endswith("Error") or name in ("Throttled", "StartFailed")]
    for name in names:
        assert traceback.format_exception_only(getattr(tokentap, name)("text"))[0].startswith(f"tokentap.{name}: text")
