#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every program and module begins with the identifier of its licence: spdx.py [--write]

The line is the first one, or the second after `#!`. Files are found by their suffix, their name or `#!`; pages, documents and
configuration have none, and neither have generated files and fixtures of others. --write adds it.
"""

import pathlib
import re
import subprocess
import sys

LICENCE = "SPDX-License-Identifier: Apache-2.0"
COMMENTS = {
    **dict.fromkeys((".rs", ".js", ".mjs", ".ts", ".proto", ".cu", ".c", ".cpp", ".h"), "// {}"),
    **dict.fromkeys((".py", ".sh", ".sbatch", ".service", ".Dockerfile", "Dockerfile", "Makefile"), "# {}"),
    ".css": "/* {} */",
}


def comment(path: pathlib.Path) -> "str | None":
    """How a comment looks in this file, or None if it needs no identifier."""
    if re.match(r"(.*/)?fixtures/", str(path)) or not path.is_file() or path.is_symlink():
        return None
    # .ci/run and other programs without a suffix
    program = not path.suffix and path.read_bytes().startswith(b"#!")
    return COMMENTS.get(path.suffix or path.name, "# {}" if program else None)


def main() -> None:
    count, missing = 0, []
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
    for path in map(pathlib.Path, listed):
        if not (form := comment(path)):
            continue
        text = path.read_text()
        if not text or text.startswith("// Generated from "):
            continue
        count += 1
        line = form.format(LICENCE)
        shebang, rest = re.fullmatch(r"(#![^\[\n]*\n)?(.*)", text, re.S).groups(default="")
        if not rest.startswith(line + "\n"):
            missing.append(str(path))
            if "--write" in sys.argv:
                path.write_text(f"{shebang}{line}\n{rest}")
    if missing and "--write" not in sys.argv:
        sys.exit("no SPDX identifier; python3 .ci/spdx.py --write adds it:\n" + "\n".join(missing))
    print(f"spdx: {count} source files, {len(missing)} changed")


main()
