# SPDX-License-Identifier: Apache-2.0
"""Compiles cuda/*.cu to cuda/*.ptx, or with --check compares them byte for byte.

The compiler is the NVRTC of the wheel nvidia-cuda-nvrtc-cu12==12.0.140: its PTX (ISA 8.0) works with every driver
from 12.0 on and with devices from sm_80 on. --nvrtc PATH names libnvrtc.so.12, with libnvrtc-builtins.so.12.0 in the same
directory; by default it is found among the packages of this Python. The first line of each file has the hash of its
concatenated sources, so that a stale file is detected without NVRTC.
"""

import argparse
import ctypes
import hashlib
import pathlib
import site
import sys

VERSION = "12.0.140"
ARCHITECTURE = "compute_80"
HERE = pathlib.Path(__file__).resolve().parent
# Each PTX file, and the sources that are concatenated for it.
PROGRAMS = {"entropy.ptx": ("load.cu", "entropy.cu"), "read.ptx": ("load.cu", "read.cu")}


def installed() -> pathlib.Path:
    for packages in site.getsitepackages():
        path = pathlib.Path(packages, "nvidia", "cuda_nvrtc", "lib", "libnvrtc.so.12")
        if path.exists():
            return path
    sys.exit(f"no NVRTC: install nvidia-cuda-nvrtc-cu12=={VERSION}, or give --nvrtc PATH")


class Nvrtc:
    def __init__(self, path: pathlib.Path) -> None:
        # The compiler opens its builtins by name, and the directory of the wheel is on no search path.
        for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
            ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
        self.library = ctypes.CDLL(str(path))

    def ptx(self, name: str, source: bytes) -> str:
        program = ctypes.c_void_p()
        # The name becomes part of mangled symbols, so it is never a path.
        self.call("CreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        options = [f"--gpu-architecture={ARCHITECTURE}".encode(), b"-std=c++17"]
        try:
            self.call("CompileProgram", program, len(options), (ctypes.c_char_p * len(options))(*options))
        except RuntimeError as error:
            sys.exit(f"{name}: {error}\n{self.text('ProgramLog', program)}")
        ptx = self.text("PTX", program)
        self.call("DestroyProgram", ctypes.byref(program))
        if f"V{VERSION}" not in ptx:
            sys.exit(f"this NVRTC is not {VERSION}")
        return ptx

    def text(self, what: str, program: ctypes.c_void_p) -> str:
        size = ctypes.c_size_t()
        self.call(f"Get{what}Size", program, ctypes.byref(size))
        text = ctypes.create_string_buffer(size.value)
        self.call(f"Get{what}", program, text)
        return text.value.decode()

    def call(self, name: str, *arguments: object) -> None:
        code = self.library[f"nvrtc{name}"](*arguments)
        if code:
            raise RuntimeError(f"nvrtc{name} answered {code}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file is stale")
    parser.add_argument("--nvrtc", type=pathlib.Path, help="libnvrtc.so.12")
    arguments = parser.parse_args()
    nvrtc = Nvrtc((arguments.nvrtc or installed()).resolve())
    stale = []
    for name, parts in PROGRAMS.items():
        source = b"".join((HERE / part).read_bytes() for part in parts)
        first = f"// {' '.join(parts)} sha256:{hashlib.sha256(source).hexdigest()} nvrtc {VERSION} {ARCHITECTURE}\n"
        made = (first + nvrtc.ptx(parts[0], source)).encode()
        file = HERE / name
        if not arguments.check:
            file.write_bytes(made)
        elif not file.exists() or file.read_bytes() != made:
            stale.append(name)
    if stale:
        sys.exit(f"not what their sources give (make ptx): {', '.join(stale)}")


if __name__ == "__main__":
    main()
