# SPDX-License-Identifier: Apache-2.0
"""validate.py TOKENTAP: validates the document at /openapi.json of a running `tokentap demo` with openapi-spec-validator, which is not ours."""

import json
import re
import subprocess
import sys
import urllib.request

from openapi_spec_validator import OpenAPIV31SpecValidator

command = [sys.argv[1], "demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "off"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as demo:
    try:
        line = next(line for line in demo.stdout if line.startswith("The page: "))
        page = re.search(r"http://\S+/", line)[0]
        with urllib.request.urlopen(page + "openapi.json", timeout=60) as reply:
            document = json.load(reply)
    finally:
        demo.terminate()
errors = [f"{'/'.join(map(str, error.absolute_path))}: {error.message}" for error in OpenAPIV31SpecValidator(document).iter_errors()]
if errors:
    sys.exit("\n".join(errors))
print(f"openapi: OpenAPI {document['openapi']}, {len(document['paths'])} paths, valid")
