#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every source file begins with the identifier of its licence: spdx.py [--write]

The line is the first one, or the second after `#!`. Generated files and fixtures of others have none. --write adds it.
"""

import pathlib
import re
import subprocess
import sys

LICENCE = "SPDX-License-Identifier: Apache-2.0"
COMMENTS = {
    **dict.fromkeys((".rs", ".js", ".mjs", ".proto", ".cu", ".c", ".cpp", ".h"), "// {}"),
    **dict.fromkeys((".py", ".sh", ".sbatch"), "# {}"),
    ".css": "/* {} */",
}


def sources() -> list[pathlib.Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], check=True, capture_output=True, text=True).stdout.split("\0")
    found = [pathlib.Path(name) for name in listed if not re.match(r"(.*/)?fixtures/", name)]
    return [path for path in found if path.suffix in COMMENTS and path.is_file() and not path.is_symlink()]


def main() -> None:
    count, missing = 0, []
    for path in sources():
        text = path.read_text()
        if not text or text.startswith("// Generated from "):
            continue
        count += 1
        line = COMMENTS[path.suffix].format(LICENCE)
        shebang, rest = re.fullmatch(r"(#![^\[\n]*\n)?(.*)", text, re.S).groups(default="")
        if not rest.startswith(line + "\n"):
            missing.append(str(path))
            if "--write" in sys.argv:
                path.write_text(f"{shebang}{line}\n{rest}")
    if missing and "--write" not in sys.argv:
        sys.exit("no SPDX identifier; python3 .ci/spdx.py --write adds it:\n" + "\n".join(missing))
    print(f"spdx: {count} source files, {len(missing)} changed")


main()
