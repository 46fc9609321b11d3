# SPDX-License-Identifier: Apache-2.0
"""Executes docs/notebooks/entropy.ipynb with a `tokentap demo` and checks its outputs; with --write it stores them.

With --pictures it also renders docs/images/notebook-*.png from the outputs, in headless Chromium.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "docs" / "notebooks" / "entropy.ipynb"
MOST_BYTES = 200_000

# The notebook uses the default addresses; the demo of this script has others.
REDIRECT = "import tokentap; tokentap.Client.__init__.__defaults__ = ({data!r}, {control!r})"


@contextmanager
def demo(binary: str) -> Iterator[tuple[str, str]]:
    """Runs a demo; yields its data and its control address."""
    ports = ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "warn"]
    process = subprocess.Popen([binary, "demo", *ports], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        output = ""
        for line in process.stdout:
            output += line
            if line.startswith("Metrics:"):
                break
        data, control = re.search(r"(http://[\d.:]+)/generate", output), re.search(r"(http://[\d.:]+)/v1", output)
        assert data and control, output
        yield data[1], control[1]
    finally:
        process.terminate()
        process.wait()


def execute(notebook: Any, data: str, control: str) -> None:
    """Replaces the outputs of the cells."""
    notebook.cells.insert(0, nbformat.v4.new_code_cell(REDIRECT.format(data=data, control=control)))
    NotebookClient(notebook, timeout=120, kernel_name="python3", record_timing=False).execute()
    del notebook.cells[0]
    notebook.metadata["language_info"] = {"name": "python"}
    for number, cell in enumerate((cell for cell in notebook.cells if cell.cell_type == "code"), 1):
        cell.execution_count = number
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number


def check(notebook: Any) -> None:
    """Checks size, kinds and contents of the outputs."""
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    streams = [output for output in outputs if output.output_type in ("stream", "error")]
    assert not streams, f"a cell wrote to stdout or stderr, or failed: {streams}"
    kinds = [kind for output in outputs for kind in output.data if kind != "text/plain"]
    assert kinds.count("text/html") == 4, kinds
    assert kinds.count("image/png") == 2, kinds
    text = nbformat.writes(notebook)
    assert len(text) < MOST_BYTES, f"{len(text)} bytes, the limit is {MOST_BYTES}"
    found = nbformat.writes(nbformat.from_dict({**notebook, "cells": [{**cell, "source": ""} for cell in notebook.cells]}))
    hosts = re.findall(r"https?://[^\s\"\\]*|127\.0\.0\.1|localhost", found)
    assert not hosts, f"outputs name hosts: {hosts}"
    for name in {str(ROOT), str(Path.home()), tempfile.gettempdir()} - {"/"}:
        assert f"{name}/" not in found, f"outputs name the path {name}"


def kinds(notebook: Any) -> list[list[str]]:
    """The kinds of the outputs of each cell, for a comparison that ignores the numbers."""
    return [[kind for output in cell.get("outputs", ()) for kind in sorted(output.data)] for cell in notebook.cells]


def pictures(notebook: Any, chromium: str) -> None:
    """Renders the output of the cell `show`, light and dark."""
    html = next(cell.outputs[0].data["text/html"] for cell in notebook.cells if cell.id == "show")
    # the view has the colours, and fills the window here
    style = "<style>body{margin:0}.tokentap{box-sizing:border-box;min-height:100vh;border-radius:0!important}</style>"
    page = f'<!doctype html><meta charset="utf-8">{style}{html}'
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(page)
        # Blink's numbers of the preferred color scheme
        for name, scheme in (("light", 1), ("dark", 0)):
            picture = ROOT / "docs" / "images" / f"notebook-{name}.png"
            flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,640"]
            color = f"--blink-settings=preferredColorScheme={scheme}"
            command = [chromium, *flags, color, f"--screenshot={picture}", file.as_uri()]
            subprocess.run(command, check=True, capture_output=True, timeout=60)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokentap", required=True)
    parser.add_argument("--write", action="store_true", help="store the outputs in the file")
    parser.add_argument("--pictures", metavar="CHROMIUM", help="render the pictures with this browser")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT / "python" / "tokentap")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    before = kinds(notebook)
    with demo(options.tokentap) as (data, control):
        execute(notebook, data, control)
    check(notebook)
    if options.write:
        nbformat.write(notebook, NOTEBOOK)
    else:
        assert kinds(notebook) == before, "the stored outputs are of another kind: make notebook"
        check(nbformat.read(NOTEBOOK, as_version=4))
    if options.pictures:
        pictures(notebook, options.pictures)
    print(f"{NOTEBOOK.name}: {len(notebook.cells)} cells, {len(nbformat.writes(notebook)):,} bytes")


if __name__ == "__main__":
    main()
