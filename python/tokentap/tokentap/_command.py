# SPDX-License-Identifier: Apache-2.0
"""The command `tokentap-sidecar`, which runs the binary `tokentap`: `uvx tokentap-sidecar demo`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Replaces this process by the binary, with the same arguments. Exits with 1 if no binary is found."""
    try:
        # imported here: the other product named `tokentap` may have overwritten the package's __init__.py
        from . import _conflict  # noqa: F401
        from ._binary import find

        binary = find()
    except Exception as error:
        sys.exit(f"tokentap-sidecar: {error}")
    os.execv(binary, [str(binary), *sys.argv[1:]])
