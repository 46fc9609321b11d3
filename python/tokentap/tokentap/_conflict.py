# SPDX-License-Identifier: Apache-2.0
"""Refuses an environment that also has the other product named `tokentap`.

The distribution `tokentap` of PyPI installs files of the same paths as `tokentap-sidecar`: the package `tokentap` and
the command `tokentap`. An installer reports no conflict, and the last installation overwrites the other.
"""

from __future__ import annotations

from pathlib import Path


def check(site: Path) -> None:
    """Raises `ImportError` if `site`, a folder of installed packages, has the distribution `tokentap`."""
    for entry in site.glob("tokentap-*.dist-info"):
        version = entry.name.removeprefix("tokentap-").removesuffix(".dist-info")
        raise ImportError(
            f"the distribution 'tokentap' {version} in {site} is another product, and installs files of the same paths "
            "as 'tokentap-sidecar'. Run: pip uninstall -y tokentap && pip install --force-reinstall tokentap-sidecar"
        )


check(Path(__file__).resolve().parent.parent)
