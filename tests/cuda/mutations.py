# SPDX-License-Identifier: Apache-2.0
"""Mutation tests of the kernels: breaks one line at a time and expects run.sh to fail each time.

Takes minutes, and prints the check that failed. Arguments select the mutations whose names contain one of them.
"""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
CUDA = HERE.parent.parent / "cuda"

# Name, file, original text, which must occur exactly once, and replacement.
MUTATIONS = (
    ("no barrier after the warps' sums", "entropy.cu", "warps[warp] = a;\n  __syncthreads();", "warps[warp] = a;"),
    ("no barrier before the next row", "entropy.cu", "  __syncthreads();  // the next row", "  // the next row"),
    ("no barrier before the ticket", "entropy.cu", "  }\n  __syncthreads();\n  if (ticket", "  }\n  if (ticket"),
    ("a broken accumulator", "entropy.cu", "part.s += de;", "part.s += e;"),
    ("a dropped square", "entropy.cu", "part.q += d * de;", ""),
    ("a raised maximum without the shift of s", "entropy.cu", "a.s = scale * (a.s + step * a.z);", "a.s = scale * a.s;"),
    (
        "a value less at an unaligned head",
        "entropy.cu",
        "if (thread < head + rest) {",
        "if (thread < head + rest && thread != head - 1) {",
    ),
    ("a head that is not aligned", "entropy.cu", "if (head > count) head = count;", "head = 0;"),
    ("a load too many", "entropy.cu", "if (i + j * threads < loads) {", "if (i + j * threads <= loads) {"),
    ("a load too few", "entropy.cu", "if (i + j * threads < loads) {", "if (i + j * threads + 1 < loads) {"),
    ("a last load that is not added", "entropy.cu", "live = j + 1;", "live = j;"),
    ("no floor", "entropy.cu", "float d = max_or_nan((x - part.top) * c, FLOOR);", "float d = (x - part.top) * c;"),
    (
        "a residue at the maximum",
        "entropy.cu",
        "max_or_nan((x - part.top) * c, FLOOR)",
        "max_or_nan(x * c - part.top * c + 1e-4f, FLOOR)",
    ),
    ("masked that counts", "entropy.cu", "LEAST_LIVE = -0x1.93e592p99f", "LEAST_LIVE = -1e30f"),
    (
        "half a warp",
        "entropy.cu",
        "int far = 16; far; far >>= 1) {\n    a.z",
        "int far = 8; far; far >>= 1) {\n    a.z",
    ),
    ("a ticket that is not reset", "entropy.cu", "tickets[blockIdx.y] = 0u;", ""),
    ("a part of a row left out", "entropy.cu", "i < splits; i += 32", "i < splits - 1; i += 32"),
    ("the sampled token's neighbour", "entropy.cu", "[row.chosen]);", "[row.chosen ? row.chosen - 1 : 0]);"),
    (
        "a temperature forgotten",
        "entropy.cu",
        "float c = LOG2_E * row.inverse_temperature;\n    Sums",
        "float c = LOG2_E;\n    Sums",
    ),
    ("words not read", "read.cu", "for (; i < count; i += stride)", "for (; i + 1 < count; i += stride)"),
)


def main() -> None:
    unnoticed = 0
    chosen = [
        mutation for mutation in MUTATIONS if not sys.argv[1:] or any(word in mutation[0] for word in sys.argv[1:])
    ]
    for what, name, old, new in chosen:
        with tempfile.TemporaryDirectory() as folder:
            for source in CUDA.glob("*.cu"):
                shutil.copy(source, folder)
            path = pathlib.Path(folder, name)
            text = path.read_text()
            if text.count(old) != 1:
                sys.exit(f"{what}: does not occur exactly once in {name}: {old}")
            path.write_text(text.replace(old, new))
            command, environment = ["bash", HERE / "run.sh"], {**os.environ, "CUDA": folder}
            done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
        # A mutation that does not compile proves nothing.
        failures = [line for line in (done.stdout + done.stderr).splitlines() if line.startswith(("FAILED", "shim:"))]
        noticed = done.returncode != 0 and bool(failures)
        unnoticed += not noticed
        print(f"{'noticed' if noticed else 'NOT NOTICED'}: {what}: {failures[0] if failures else ''}", flush=True)
    if unnoticed:
        sys.exit(f"{unnoticed} of {len(chosen)} were not noticed")


if __name__ == "__main__":
    main()
