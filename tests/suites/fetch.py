# SPDX-License-Identifier: Apache-2.0
"""fetch.py FILE FOLDER: downloads a source package from the package index that pip uses, without building it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.parse
import urllib.request
from pathlib import Path


def index() -> str:
    configured = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
    )
    return os.environ.get("PIP_INDEX_URL") or configured.stdout.strip() or "https://pypi.org/simple"


def main() -> None:
    file, folder = sys.argv[1], Path(sys.argv[2])
    project = file.rsplit("-", 1)[0].replace("_", "-")
    page = f"{index().rstrip('/')}/{project}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    with urllib.request.urlopen(urllib.request.Request(page, headers={"Accept": accept})) as reply:
        text = reply.read().decode()
    try:
        links = [entry["url"] for entry in json.loads(text)["files"]]
    except ValueError:
        links = re.findall(r'href="([^"]+)"', text)
    link = next(link for link in links if link.split("#")[0].endswith("/" + file))
    with urllib.request.urlopen(urllib.parse.urljoin(page, link)) as reply:
        (folder / file).write_bytes(reply.read())


if __name__ == "__main__":
    main()
