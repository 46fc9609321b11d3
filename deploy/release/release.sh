#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything of a release in target/packages, and tries it: release.sh [TARGET...]
#   TARGET   as for wheel.sh (x86_64-unknown-linux-gnu, and aarch64-unknown-linux-gnu if rustup has its standard library)
# wheel.sh builds the wheels, the source archive, the stripped binaries, their debug information and their SBOMs. This adds the checksums.
# Fails with uncommitted files, because the archives have the time of the last commit.
set -euo pipefail
cd "$(dirname "$0")/../.."
source tests/common.sh
uncommitted=$(git status --porcelain)
if [[ $uncommitted ]]; then printf 'release.sh: uncommitted files:\n%s\n' "$uncommitted" >&2; exit 1; fi
targets=("$@")
if ((!${#targets[@]})); then
  targets=(x86_64-unknown-linux-gnu)
  if [[ -d $(rustc --print sysroot)/lib/rustlib/aarch64-unknown-linux-gnu ]]; then targets+=(aarch64-unknown-linux-gnu); fi
fi

python3 deploy/release/version.py
bash deploy/release/wheel.sh "${targets[@]}"

out=target/packages work=target/release-work
# a public validator of CycloneDX, and that of the metadata on PyPI
python_environment "$PWD/target/release-checks" deploy/release/checks.txt
for sbom in "$out"/*.cyclonedx.json; do
  target/release-checks/bin/python - "$sbom" <<'CHECK'
import json
import sys

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

text = open(sys.argv[1]).read()
document = json.loads(text)
errors = JsonStrictValidator(SchemaVersion.from_version(document["specVersion"])).validate_str(text)
assert errors is None, errors
names = {component["name"] for component in document["components"]}
assert {"hyper", "tokio", "rustls", "onig_sys"} <= names, names
print(f"{sys.argv[1]}: valid CycloneDX {document['specVersion']}, {len(names)} components")
CHECK
done
target/release-checks/bin/twine check --strict "$out"/*.whl "$out"/tokentap_sidecar-*.tar.gz

# before the trial, which runs code that is not ours
(cd "$out" && sha256sum -- * >"$OLDPWD/$work/SHA256SUMS" && mv "$OLDPWD/$work/SHA256SUMS" .)
wheel=$(echo "$out"/tokentap_sidecar-*_"$(uname -m)".whl)
bash deploy/release/try.sh "$wheel"
(cd "$out" && sha256sum --quiet --check SHA256SUMS)
cat "$out/SHA256SUMS"
