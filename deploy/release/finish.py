#!/usr/bin/env python3
"""Moves the debug information of a wheel's binary to a separate file, and adds the licences of what is linked in.

    finish.py WHEEL LICENCES OUT

Writes to OUT the wheel, the stripped binary as NAME-VERSION-TARGET.tar.gz, and its debug information as
NAME-VERSION-TARGET.debug.tar.gz, which gdb and addr2line read beside the binary. Prints the sizes.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def objcopy(*arguments: str | Path) -> None:
    """Runs the objcopy of the Rust toolchain, which knows every target. It needs the toolchain's LLVM."""
    sysroot = Path(run("rustc", "--print", "sysroot").strip())
    host = next(line.split()[1] for line in run("rustc", "-vV").splitlines() if line.startswith("host:"))
    program = sysroot / "lib" / "rustlib" / host / "bin" / "rust-objcopy"
    subprocess.run((program, *arguments), check=True, env={**os.environ, "LD_LIBRARY_PATH": str(sysroot / "lib")})


def archive(path: Path, files: dict[str, Path]) -> None:
    """A tar file whose bytes depend on the files only."""
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))

    def neutral(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = "root"
        info.mtime = epoch
        return info

    plain = path.with_suffix("")
    with tarfile.open(plain, "w") as tar:
        for name, file in files.items():
            tar.add(file, name, filter=neutral)
    run("gzip", "--no-name", "--force", "-9", plain)


def main() -> None:
    wheel, licences, out = map(Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    name, version, *_, platform = wheel.stem.split("-")
    platform = platform.split(".")[0].removeprefix("manylinux_2_28_")
    with tempfile.TemporaryDirectory() as folder:
        run(sys.executable, "-m", "wheel", "unpack", "--dest", folder, wheel)
        root = Path(folder) / f"{name}-{version}"
        binary = root / f"{name}-{version}.data" / "scripts" / "tokentap"
        full = binary.stat().st_size
        # the names by which gdb finds the file from the binary
        debug = Path(folder) / "tokentap.debug"
        objcopy("--only-keep-debug", binary, debug)
        objcopy("--strip-all", f"--add-gnu-debuglink={debug}", binary)
        for script in binary.parent.iterdir():
            script.chmod(0o755)

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
        archive(out / f"{stem}.tar.gz", {f"{stem}/{name}": file for name, file in files.items()})
        archive(out / f"{stem}.debug.tar.gz", {f"{stem}/tokentap.debug": debug})
        for sbom in (info / "sboms").iterdir():
            shutil.copy(sbom, out / f"{stem}.cyclonedx.json")
        run(sys.executable, "-m", "wheel", "pack", "--dest-dir", out, root)
        print(f"{wheel.name}: binary {full / 1e6:.1f} MB, stripped {binary.stat().st_size / 1e6:.1f} MB")


main()
