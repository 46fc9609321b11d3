# SPDX-License-Identifier: Apache-2.0
"""Compares the operations of a document with those of the clients generated from it.

generated.py DOCUMENT PYTHON_PACKAGE SDK_OF_TYPESCRIPT
"""

import importlib
import json
import pkgutil
import re
import sys
from pathlib import Path

sys.path.insert(0, ".")
document = json.loads(Path(sys.argv[1]).read_text())
methods = {"get", "put", "post", "delete", "patch"}
operations = [
    operation["operationId"]
    for path in document["paths"].values()
    for method, operation in path.items()
    if method in methods
]


def snake_case(name: str) -> str:
    return re.sub(r"([A-Z])", r"_\1", name).lower()


package = importlib.import_module(sys.argv[2])
modules = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.")]
for module in modules:
    importlib.import_module(module)
api = [module.split(".") for module in modules if module.startswith(f"{package.__name__}.api.")]
in_python = [parts[3] for parts in api if len(parts) == 4]
in_typescript = re.findall(r"^export const (\w+) = ", Path(sys.argv[3]).read_text(), re.MULTILINE)
for language, found, expected in (
    ("Python", in_python, [snake_case(name) for name in operations]),
    ("TypeScript", in_typescript, operations),
):
    if sorted(found) != sorted(expected):
        sys.exit(f"{language}: missing {set(expected) - set(found)}, unexpected {set(found) - set(expected)}")
print(f"clients: {len(operations)} operations, as many in Python ({len(modules)} modules) and in TypeScript")
