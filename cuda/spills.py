# SPDX-License-Identifier: Apache-2.0
"""Reports registers, stack, spills and 16-byte loads of cuda/*.ptx after assembly, for each kernel and architecture.

Fails if a kernel has a stack or spills, or if a kernel that reads rows has no 16-byte loads. For those kernels, the last
column is the instructions per value (per load, for read_sum) of the loop over whole groups of loads, including the rarely
taken branch for a new maximum. Needs ptxas and nvdisasm of the wheels that spills.sh installs.
"""

import pathlib
import re
import site
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
ARCHITECTURES = (80, 86, 89, 90, 100, 120)
# Values in a group of four 16-byte loads; for read_sum, the loads themselves.
GROUPS = {"bf16": 32, "f16": 32, "f32": 16, "sum": 4}

COMPILED = re.compile(
    r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads"
    r".*?Used (\d+) registers",
    re.DOTALL,
)


def tool(pattern: str) -> str:
    for packages in site.getsitepackages():
        for path in pathlib.Path(packages, "nvidia").glob(pattern):
            return str(path)
    sys.exit(f"no {pattern}: run spills.sh")


def loop(sass: list[str]) -> int:
    """Instructions of the shortest loop with four 16-byte loads, 0 if no loop has them."""
    found, labels, count = [], {}, 0
    wide: list[int] = []
    for line in sass:
        if label := re.match(r"\s*\.(L_\w+):", line):
            labels[label[1]] = count
        elif re.match(r"\s*/\*[0-9a-f]{4,}\*/", line):
            count += 1
            if "LDG" in line and ".128" in line:
                wide.append(count)
            back = re.search(r"BRA `\(\.(L_\w+)\)", line)
            if back and back[1] in labels and sum(at > labels[back[1]] for at in wide) >= 4:
                found.append(count - labels[back[1]])
    return min(found, default=0)


def main() -> None:
    ptxas, nvdisasm = tool("*/bin/ptxas"), tool("*/bin/nvdisasm")
    wrong = []
    print(f"{'kernel':20} {'sm':>4} {'registers':>9} {'stack':>5} {'spills':>6} {'loads':>5}  instructions a value")
    with tempfile.TemporaryDirectory() as folder:
        for ptx in sorted(HERE.glob("*.ptx")):
            for architecture in ARCHITECTURES:
                cubin = pathlib.Path(folder, f"{ptx.stem}.{architecture}.cubin")
                said = subprocess.run(
                    [ptxas, "-v", f"-arch=sm_{architecture}", ptx, "-o", cubin],
                    check=True,
                    capture_output=True,
                    text=True,
                ).stderr
                listing = subprocess.run([nvdisasm, "-c", cubin], check=True, capture_output=True, text=True).stdout
                sections = dict(
                    re.findall(r"^\.text\.(\w+):\n(.*?)(?=^\.text\.|\Z)", listing, re.DOTALL | re.MULTILINE)
                )
                kernels = re.findall(r"\.entry (\w+)\(", ptx.read_text())
                compiled = {name: list(map(int, numbers)) for name, *numbers in COMPILED.findall(said)}
                for name in kernels:
                    stack, stores, loads, registers = compiled[name]
                    sass = sections[name].splitlines()
                    wide = sum("LDG" in line and ".128" in line for line in sass)
                    group = GROUPS.get(name.rsplit("_", 1)[1])
                    size = loop(sass)
                    per_value = f"{size / group:.1f}" if group and size else ""
                    print(
                        f"{name:20} {architecture:4} {registers:9} {stack:5} {stores + loads:6} {wide:5}  {per_value}"
                    )
                    if stack or stores or loads:
                        wrong.append(f"{name} on sm_{architecture} has a stack or spills")
                    if group and not size:
                        wrong.append(f"{name} on sm_{architecture} has no loop over four 16-byte loads")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
