#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks and writes the version of the project: that of Cargo.toml, which other files repeat.

version.py           checks that every file has the version of Cargo.toml
version.py X.Y.Z     writes a new version to Cargo.toml and to every file
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Without pre-releases, which Cargo and Python write differently.
VERSION = r"\d+\.\d+\.\d+"

# The manifest, and the text before its version.
SOURCE = ("Cargo.toml", r'^\[package\]\nname = "tokentap"\nversion = "')

# Each other file, and the text before the version. Everything that matches is written.
COPIES = (
    ("Cargo.lock", r'^name = "tokentap"\nversion = "'),
    ("deploy/Dockerfile", r"-t tokentap:|^ARG VERSION="),
    ("deploy/check/helm/Chart.yaml", r"^- name: tokentap\n  version: "),
    ("deploy/helm/tokentap/Chart.yaml", r"^version: |^appVersion: "),
    ("deploy/kubernetes/components/sidecar/sidecar.yaml", r"image: tokentap:"),
    ("deploy/kubernetes/components/sidecar/kustomization.yaml", r'newTag: "'),
    ("docker-compose.yml", r"image: tokentap:"),
    ("docs/guides/helm.md", r"name: tokentap, version: "),
    ("docs/guides/kubernetes.md", r'newTag: "'),
    ("docs/guides/serve.md", r"-t tokentap:"),
    ("tests/fuzz/Cargo.lock", r'^name = "tokentap"\nversion = "'),
    ("python/tokentap-sglang/pyproject.toml", r'^name = "tokentap-sglang"\nversion = "'),
)


def pattern(before: str) -> re.Pattern[str]:
    return re.compile(f"({before})({VERSION})", re.MULTILINE)


def found(path: str, before: str) -> list[str]:
    """The versions in a file. Ends the program if it has none."""
    versions = [match[2] for match in pattern(before).finditer((ROOT / path).read_text())]
    return versions or sys.exit(f"{path}: no version after {before!r}; mend the file, or deploy/release/version.py")


def main() -> None:
    if len(sys.argv) > 1:
        new = sys.argv[1]
        if not re.fullmatch(VERSION, new):
            sys.exit(f"{new!r} is not a version such as 1.2.3")
        for path, before in (SOURCE, *COPIES):
            found(path, before)
            text = (ROOT / path).read_text()
            (ROOT / path).write_text(pattern(before).sub(lambda match: match[1] + new, text))
    [version] = found(*SOURCE)
    wrong = [f"{path} has {other}" for path, before in COPIES for other in found(path, before) if other != version]
    if wrong:
        sys.exit(f"Cargo.toml has version {version}; run deploy/release/version.py {version}:\n" + "\n".join(wrong))
    print(f"version {version} in {1 + len(COPIES)} files")


main()
