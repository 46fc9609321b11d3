#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the scripts of a source archive executable.

    executable.py ARCHIVE

maturin writes one mode for all files. A wheel takes the mode of a script from the archive that it is built from.
"""

import gzip
import io
import sys
import tarfile
from pathlib import Path


def main() -> None:
    path = Path(sys.argv[1])
    plain, count = io.BytesIO(), 0
    with tarfile.open(path) as source, tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in source:
            if "/data/scripts/" in member.name:
                member.mode |= 0o111
                count += 1
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    if not count:
        sys.exit(f"{path} has no scripts")
    path.write_bytes(gzip.compress(plain.getvalue(), mtime=0))


main()
