#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Moves the debug information of a wheel's binary to a separate file, and adds what is not in Cargo's build.

    finish.py WHEEL LICENCES SHARE OUT

It adds the licences of what is linked in, and SHARE: man pages and completions, which pip installs below
ENVIRONMENT/share. Writes to OUT the wheel, the stripped binary as NAME-VERSION-TARGET.tar.gz, and its debug
information as NAME-VERSION-TARGET.debug.tar.gz, for gdb and addr2line. Prints the sizes.
"""

import datetime
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EPOCH = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def objcopy(*arguments: str | Path) -> None:
    """Runs the objcopy of the Rust toolchain, which knows every target. It needs the toolchain's LLVM."""
    sysroot = Path(run("rustc", "--print", "sysroot").strip())
    host = next(line.split()[1] for line in run("rustc", "-vV").splitlines() if line.startswith("host:"))
    program = sysroot / "lib" / "rustlib" / host / "bin" / "rust-objcopy"
    subprocess.run((program, *arguments), check=True, env={**os.environ, "LD_LIBRARY_PATH": str(sysroot / "lib")})


def neutral_mode(mode: int) -> int:
    """A mode that does not depend on the umask."""
    return 0o755 if mode & 0o100 else 0o644


def archive(path: Path, files: dict[str, Path]) -> None:
    """A tar file whose bytes depend on the files only."""

    def neutral(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = EPOCH
        info.mode = neutral_mode(info.mode)
        return info

    plain = path.with_suffix("")
    with tarfile.open(plain, "w") as tar:
        for name, file in files.items():
            tar.add(file, name, filter=neutral)
    run("gzip", "--no-name", "--force", "-9", plain)


def settle_sbom(path: Path) -> None:
    """Replaces what differs between two builds of one commit: the folder, the time and a random number."""
    document = json.loads(path.read_text().replace(f"path+file://{ROOT}", "path+file:///tokentap"))
    # maturin leaves it out if SOURCE_DATE_EPOCH is set
    document.pop("serialNumber", None)
    document["metadata"]["timestamp"] = datetime.datetime.fromtimestamp(EPOCH, datetime.timezone.utc).isoformat()
    text = json.dumps(document, sort_keys=True)
    document["serialNumber"] = uuid.uuid5(uuid.NAMESPACE_URL, text).urn
    path.write_text(json.dumps(document, indent=2) + "\n")


def main() -> None:
    wheel, licences, share, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    name, version, *_, platform = wheel.stem.split("-")
    platform = platform.split(".")[0].removeprefix("manylinux_2_28_")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel)
        root = Path(folder) / f"{name}-{version}"
        binary = root / f"{name}-{version}.data" / "scripts" / "tokentap"
        full = binary.stat().st_size
        # no link from the binary to it, which has its checksum: zig's C library has the folder of the build in it
        debug = Path(folder) / "tokentap.debug"
        objcopy("--only-keep-debug", binary, debug)
        objcopy("--strip-all", binary)
        for script in binary.parent.iterdir():
            script.chmod(0o755)

        shutil.copytree(share, root / f"{name}-{version}.data" / "data" / "share")
        info = root / f"{name}-{version}.dist-info"
        shutil.copy(licences, info / "licenses" / "THIRD-PARTY.txt")
        metadata = info / "METADATA"
        text = metadata.read_text()
        line = "License-File: LICENSE\n"
        if line not in text:
            sys.exit(f"{metadata} has no line {line!r}")
        metadata.write_text(text.replace(line, f"{line}License-File: THIRD-PARTY.txt\n", 1))

        stem = f"tokentap-{version}-linux-{platform}"
        files = {"tokentap": binary, "LICENSE": info / "licenses/LICENSE", "THIRD-PARTY.txt": licences}
        files |= {f"share/{path.relative_to(share)}": path for path in sorted(share.rglob("*")) if path.is_file()}
        archive(out / f"{stem}.tar.gz", {f"{stem}/{name}": file for name, file in files.items()})
        archive(out / f"{stem}.debug.tar.gz", {f"{stem}/tokentap.debug": debug})
        for sbom in (info / "sboms").iterdir():
            settle_sbom(sbom)
            shutil.copy(sbom, out / f"{stem}.cyclonedx.json")
        for path in root.rglob("*"):
            path.chmod(neutral_mode(path.stat().st_mode))
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", out, root)
        print(f"{wheel.name}: binary {full / 1e6:.1f} MB, stripped {binary.stat().st_size / 1e6:.1f} MB")


main()
