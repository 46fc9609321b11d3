#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the licences of what is in the binary: crates, their C code, Rust's standard library, zig's unwinder, and
texts of others.

    licences.py TARGET ZIG     TARGET: a target triple; ZIG: the folder of the Python package ziglang

Equal texts are printed once. A crate without a licence file is listed with its SPDX expression.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

# Names of licence files.
FILE = re.compile(r"(un)?licen[sc]e|copying|notice|copyright", re.IGNORECASE)

# The licences of the standard library and of what it links in.
STANDARD = ("MIT", "Apache-2.0", "LLVM-exception", "Unicode-3.0", "BSD-2-Clause")


def linked(target: str) -> list[dict]:
    """The packages that are linked into the binary of a target, sorted by name and version; without tokentap."""
    command = ["cargo", "metadata", "--format-version", "1", "--locked", "--filter-platform", target]
    metadata = json.loads(subprocess.check_output(command))
    packages = {package["id"]: package for package in metadata["packages"]}
    nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}
    root = metadata["resolve"]["root"]
    found, queue = set(), [root]
    while queue:
        node = queue.pop()
        if node in found:
            continue
        found.add(node)
        for dependency in nodes[node]["deps"]:
            is_macro = any("proc-macro" in part["kind"] for part in packages[dependency["pkg"]]["targets"])
            if not is_macro and any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                queue.append(dependency["pkg"])
    return sorted((packages[id] for id in found - {root}), key=lambda package: (package["name"], package["version"]))


def texts(folder: Path) -> list[str]:
    """The licence files of a folder and of the sources below it."""
    files = (path for path in sorted(folder.rglob("*")) if FILE.match(path.name) and path.is_file())
    sources = {".rs", ".c", ".h", ".py", ".sh", ".toml", ".json", ".html"}
    found = (path.read_text(errors="replace").strip() for path in files if path.suffix not in sources)
    return [text for text in found if text]


def general(licences: Path, name: str) -> str:
    """The text of a licence without the name of an author."""
    return (licences / f"{name}.txt").read_text().strip()


def main() -> None:
    target, zig = sys.argv[1], Path(sys.argv[2])
    sysroot = Path(subprocess.check_output(["rustc", "--print", "sysroot"], text=True).strip())
    licences = sysroot / "share/doc/rust/licenses"
    rustc = subprocess.check_output(["rustc", "--version"], text=True).split()[1]
    # name, SPDX expression, texts
    parts: list[tuple[str, str, list[str]]] = []
    for package in linked(target):
        folder = Path(package["manifest_path"]).parent
        expression = package["license"] or "no expression"
        # without a file the texts of the licences that the crate names, which the toolchain has
        named = [general(licences, name) for name in ("MIT", "Apache-2.0") if name in expression]
        parts.append((f"{package['name']} {package['version']}", expression, texts(folder) or named))
    # the folder also has the licences of the compiler's parts, which are not linked in
    standard = [general(licences, name) for name in STANDARD]
    parts.append((f"Rust standard library {rustc}", "MIT OR Apache-2.0", standard))
    parts.append(("LLVM libunwind", "Apache-2.0 WITH LLVM-exception", texts(zig / "lib/libunwind")))
    prompts = Path(__file__).resolve().parents[2] / "src/tokenizer/template/deepseek.LICENSE"
    parts.append(("Prompt texts of DeepSeek's encoders", "MIT", [prompts.read_text().strip()]))

    users: dict[str, list[str]] = {}
    print("Software in the tokentap binary, with its licences. The texts follow the list.\n")
    for name, expression, own in parts:
        print(f"{name}: {expression}{'' if own else ' (no licence file)'}")
        for text in own:
            users.setdefault(text, []).append(name)
    for text, names in sorted(users.items(), key=lambda item: -len(item[1])):
        print(f"\n{'=' * 80}\n{', '.join(dict.fromkeys(names))}\n{'-' * 80}\n{text}")


main()
