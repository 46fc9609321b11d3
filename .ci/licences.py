#!/usr/bin/env python3
"""Every dependency that is linked in has a licence that deny.toml allows; the same check as `cargo deny check licenses`, which a
fresh machine does not have."""

import json
import re
import subprocess
import sys
import tomllib

allowed = set(tomllib.load(open("deny.toml", "rb"))["licenses"]["allow"])
metadata = json.loads(subprocess.check_output(["cargo", "metadata", "--format-version", "1", "--locked"]))
packages = {package["id"]: package for package in metadata["packages"]}
nodes = {node["id"]: node for node in metadata["resolve"]["nodes"]}

linked, queue = set(), [metadata["resolve"]["root"]]
while queue:
    node = queue.pop()
    if node not in linked:
        linked.add(node)
        for dependency in nodes[node]["deps"]:
            if any(kind["kind"] is None for kind in dependency["dep_kinds"]):
                queue.append(dependency["pkg"])


def permitted(expression):
    """An SPDX expression with OR and AND, no deeper than crates write it; `/` is the old spelling of OR."""
    words = re.findall(r"[^\s()]+|[()]", expression.replace("/", " OR "))
    python = " ".join(
        word if word in "()" else {"OR": "or", "AND": "and", "WITH": "and"}.get(word, str(word in allowed)) for word in words
    )
    return eval(python, {"__builtins__": {}})  # only True, False, and, or and brackets are left


bad = [
    f"{packages[id]['name']} {packages[id]['version']}: {packages[id]['license']}"
    for id in linked
    if not permitted(packages[id]["license"] or "none")
]
print(f"licences: {len(linked)} packages linked in, {len(bad)} not allowed")
sys.exit("\n".join(bad) if bad else 0)
