# SPDX-License-Identifier: Apache-2.0
"""Make the registry's torch wheel importable on a machine without CUDA.

That wheel is linked against about 3 GB of NVIDIA libraries. On the CPU none of them
is called, but the loader needs every file and every symbol. This script writes one
small library with exactly the missing symbols, each of which returns 1 (an error
code in all of these libraries, so that a real call fails at once), and links it
under each missing file name. torch's own files are unchanged.
"""
import collections
import os
import re
import subprocess
import sys

OURS = "libtokentap_nocuda.so"


def out(*cmd):
    return subprocess.run(cmd, check=True, capture_output=True, text=True).stdout


def main(site):
    lib = os.path.join(site, "torch", "lib")
    # Removes the links of an earlier run, so that this run finds the same missing names.
    for name in os.listdir(lib):
        path = os.path.join(lib, name)
        if os.path.islink(path) and os.readlink(path) == OURS:
            os.unlink(path)
    # The two NVIDIA packages that are small enough to be installed.
    real = os.path.join(site, "nvidia")
    have = set(os.listdir(lib)) | {f for _, _, fs in os.walk(real) for f in fs}
    wants = collections.defaultdict(set)  # version name -> symbols; "" = no version
    missing = set()
    for name in sorted(os.listdir(lib)):
        path = os.path.join(lib, name)
        if not re.search(r"\.so(\.|$)", name) or not os.path.isfile(path) or name == OURS:
            continue
        missing |= {n for n in re.findall(r"NEEDED.*\[(lib(?:cu|nv|nccl)[^\]]*)\]", out("readelf", "-d", path)) if n not in have}
        for line in out("nm", "-D", "--undefined-only", path).splitlines():
            symbol, _, version = line.split()[-1].partition("@")
            if re.match(r"_?(cublas|cudnn|cufft|curand|cusolver|cusparse|nccl|nvrtc|nvJitLink|cuFile|nvshmem)", symbol):
                wants[version.lstrip("@")].add(symbol)
    # The driver is opened at run time, and only where there is one.
    missing.discard("libcuda.so.1")
    source, script = os.path.join(lib, "nocuda.c"), os.path.join(lib, "nocuda.map")
    with open(source, "w") as f:
        for symbol in sorted(set().union(*wants.values())):
            f.write("int %s(void) { return 1; }\n" % symbol)
    with open(script, "w") as f:
        # The loader refuses a symbol whose version name is absent.
        for version in sorted(v for v in wants if v):
            f.write("%s { global: %s; };\n" % (version, "; ".join(sorted(wants[version]))))
    flags = ["-Wl,--version-script=" + script] if any(wants) else []
    subprocess.run(["cc", "-shared", "-fPIC", "-w", *flags, "-o", os.path.join(lib, OURS), source], check=True)
    for name in sorted(missing):
        os.symlink(OURS, os.path.join(lib, name))
    print("nocuda: %d symbols for %s" % (sum(map(len, wants.values())), " ".join(sorted(missing))))


if __name__ == "__main__":
    main(sys.argv[1])
