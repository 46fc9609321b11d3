# SPDX-License-Identifier: Apache-2.0
"""deploy/helm/tokentap: lints the chart, compares what it renders with what kustomize builds, and validates it.

helm.py HELM, of version 3.17 or later. Objects are compared by value, with the order of lists. A kustomization with the labels and the name
suffix of a release stands for its settings. The two differ in the ConfigMap of Valkey: kustomize adds a hash to its
name, Helm to the pods.
"""

import itertools
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator

import kubernetes
import names
import yaml
from kubernetes import DEPLOY, NEWEST

CHART = DEPLOY / "helm/tokentap"
VERSION = yaml.safe_load((CHART / "Chart.yaml").read_text())["version"]
RELEASE = "x"
OWN = {"TOKENTAP_SESSION_BYTES": "2GiB", "TOKENTAP_LOG_FORMAT": "text"}
# values, and the kustomization of the same settings: resource, components, patches of the workload
SAME = {
    "defaults": ({}, "base", [], []),
    "monitoring": ({"monitoring": {"enabled": True}}, "base", ["monitoring"], []),
    "tls": ({"tls": {"enabled": True}, "monitoring": {"enabled": True}}, "base", ["monitoring", "tls"], []),
    "plain": ({"nativeSidecar": False, "tls": {"enabled": True}}, "base", ["tls", "plain"], []),
    "gpu-dra": ({"gpuDra": {"enabled": True}}, "base", ["gpu-dra"], []),
    "fleet": (
        {key: {"enabled": True} for key in ("monitoring", "fleet", "tls", "gpuDra")}
        | {"engine": {"kind": "StatefulSet", "replicas": 2}},
        "examples/statefulset",
        ["monitoring", "fleet", "tls", "gpu-dra"],
        [],
    ),
    "group": (
        {
            "engine": {
                "kind": "LeaderWorkerSet",
                "args": ["--tp=16"],
                "resources": {"limits": {"nvidia.com/gpu": "8"}},
            },
            "fleet": {"enabled": True},
        },
        "examples/leaderworkerset",
        ["fleet"],
        [],
    ),
    "settings": (
        {"env": OWN, "image": {"repository": "registry.example/tokentap", "tag": "1.2.3"}, "engine": {"replicas": 3}},
        "base",
        [],
        [
            {"op": "replace", "path": "/spec/replicas", "value": 3},
            {
                "op": "replace",
                "path": "/spec/template/spec/initContainers/0/image",
                "value": "registry.example/tokentap:1.2.3",
            },
            {"op": "replace", "path": "/spec/template/spec/initContainers/0/env/14/value", "value": "text"},
            {
                "op": "add",
                "path": "/spec/template/spec/initContainers/0/env/-",
                "value": {"name": "TOKENTAP_SESSION_BYTES", "value": "2GiB"},
            },
        ],
    ),
}
# values that must be refused, and a part of the error, which names the value. A path with slashes is the schema's, and Helm 3.17 writes it
# with dots
REFUSED = [
    ({"engine": {"kind": "Job"}}, "/engine/kind"),
    ({"monitorng": {"enabled": True}}, "monitorng"),
    ({"drainTimeoutSeconds": "10m"}, "/drainTimeoutSeconds"),
    ({"env": {"TOKENTAP_TOP_LOGPROBS": 5}}, "/env/TOKENTAP_TOP_LOGPROBS"),
    ({"env": {"TOKENTAP_DRAIN_TIMEOUT": "1h"}}, "env.TOKENTAP_DRAIN_TIMEOUT: set drainTimeoutSeconds"),
    ({"env": {"TOKENTAP_DATA_BYTES": "1GiB"}}, "env.TOKENTAP_DATA_BYTES: set data.bytes"),
    ({"env": {"TOKENTAP_LISTEN": "0.0.0.0:40000"}}, "env.TOKENTAP_LISTEN must not be set"),
    ({"env": {"TOKENTAP_CONTROL_LISTEN": "0.0.0.0:40000"}}, "env.TOKENTAP_CONTROL_LISTEN must not be set"),
    ({"env": {"TOKENTAP_DATA_DIR": "/log"}}, "env.TOKENTAP_DATA_DIR must not be set"),
    ({"data": {"bytes": "20GiB"}}, "data.bytes (20GiB) must be less than data.size (20Gi)"),
    ({"data": {"bytes": "1GiB", "size": "1.0G"}}, "data.bytes (1GiB) must be less than data.size (1.0G)"),
    ({"data": {"bytes": "1GiB", "size": "1073741824"}}, "data.bytes (1GiB) must be less than"),
    ({"data": {"size": "20K"}}, "/data/size"),
    ({"gpuDra": {"enabled": True}, "engine": {"kind": "LeaderWorkerSet"}}, "gpuDra.enabled needs engine.kind"),
    (
        {"gpuDra": {"enabled": True}, "engine": {"resources": {"limits": {"nvidia.com/gpu": None}}}},
        "the number of GPUs",
    ),
]
# names of releases that must be refused
NAMES = [
    ("qwen2.5", {}, "the release name qwen2.5 must not contain a dot"),
    ("x" * 47, {}, "must not be longer than 46 characters"),
    ("x" * 46, {"engine": {"kind": "StatefulSet"}}, "must not be longer than 45 characters"),
    ("x" * 43, {"engine": {"kind": "LeaderWorkerSet"}}, "must not be longer than 42 characters"),
]
# releases that must be valid: the longest names, names that YAML reads as numbers, defaults that a user deletes
ACCEPTED = [
    ("x" * 46, {"monitoring": {"enabled": True}}),
    ("x" * 45, {"engine": {"kind": "StatefulSet"}}),
    ("x" * 42, {"engine": {"kind": "LeaderWorkerSet"}}),
    (
        "123",
        {
            "secretName": "123",
            "imagePullSecrets": [{"name": "123"}],
            "env": {"NO": "1e3"},
            "data": {"bytes": "1MiB", "size": "2000000", "storageClassName": "123"},
            "engine": {"kind": "StatefulSet", "model": {"claim": "123", "folder": "123"}, "shm": "2000000"},
            "networkPolicy": {"agentNamespaces": ["123"], "trainerNamespaces": ["123"]},
            "monitoring": {"enabled": True, "namespace": "123", "agentToken": True},
            "tls": {"enabled": True, "secretName": "123"},
            "valkey": {"enabled": True, "storage": "2000000", "storageClassName": "123"},
            "gpuDra": {"enabled": True, "deviceClassName": "123"},
        },
    ),
    ("x", {"monitoring": {"enabled": True, "labels": {"release": None}}}),
    ("x", {"resources": None, "engine": {"resources": None}, "valkey": {"enabled": True, "resources": None}}),
    ("x", {"gpuDra": {"enabled": True}, "resources": {"requests": None, "limits": None}}),
    ("x", {"gpuDra": {"enabled": True}, "engine": {"resources": {"requests": {"nvidia.com/gpu": "1", "cpu": 4}}}}),
]
# every value with another than its default, for a StatefulSet
FULL = yaml.safe_load("""
image: {repository: registry.example/tokentap, tag: 1.2.3, pullPolicy: Always}
imagePullSecrets: [{name: registry}]
secretName: other
env: {TOKENTAP_SESSION_BYTES: 2GiB, TOKENTAP_NAME: {valueFrom: {fieldRef: {fieldPath: metadata.name}}}}
controlHosts: [tokentap.example]
drainTimeoutSeconds: 60
data: {bytes: 1GiB, size: 40Gi, storageClassName: fast}
resources: {requests: {cpu: 500m}, limits: {memory: 9Gi}}
volumeMounts: [{name: models, mountPath: /models, readOnly: true}]
nativeSidecar: false
engine:
  kind: StatefulSet
  replicas: 2
  image: registry.example/sglang:1.2.3
  model: {claim: weights, folder: qwen}
  args: [--tp=2]
  env: [{name: HF_HUB_OFFLINE, value: "1"}]
  resources: {requests: {cpu: "8"}, limits: {nvidia.com/gpu: "2"}}
  shm: 1Gi
  preStopSeconds: 5
  volumes: [{name: cache, emptyDir: {}}]
  volumeMounts: [{name: cache, mountPath: /cache}]
  podLabels: {team: rl}
  podAnnotations: {cluster-autoscaler.kubernetes.io/safe-to-evict: "false"}
  nodeSelector: {gpu: h100}
  tolerations: [{key: gpu, operator: Exists}]
  affinity:
    podAntiAffinity:
      requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: kubernetes.io/hostname}]
  serviceAccountName: engine
  priorityClassName: training
  runtimeClassName: nvidia
networkPolicy:
  agentNamespaces: [agents]
  trainerNamespaces: [trainers]
  extraFrom:
    data: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: routers}}, podSelector: {}}]
    control: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: ingress}}, podSelector: {}}]
monitoring:
  enabled: true
  namespace: prometheus
  labels: {release: other}
  agentToken: true
  rules: false
  dashboard: false
tls: {enabled: true, secretName: other-tls}
fleet: {enabled: true, ledger: {value: "redis://valkey.example"}}
valkey:
  enabled: true
  image: registry.example/valkey:9
  resources: {requests: {cpu: "2"}, limits: {memory: 16Gi}}
  nodeSelector: {disk: nvme}
  tolerations: [{key: storage, operator: Exists}]
  storage: 5Gi
  storageClassName: fast
gpuDra: {enabled: true, deviceClassName: gpu.example}
""")
OLD = [("1.28.0", {}, "set nativeSidecar to false"), ("1.33.0", {"gpuDra": {"enabled": True}}, "needs Kubernetes 1.34")]


def helm(*arguments: str, values: dict, chart: pathlib.Path = CHART) -> subprocess.CompletedProcess[str]:
    command = [sys.argv[1], *arguments, "--values", "-"]
    command.insert(2 if arguments[0] == "lint" else 3, str(chart))
    # the list of symbolic links in the chart
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    done.stderr = "\n".join(line for line in done.stderr.splitlines() if "found symbolic link" not in line)
    return done


def render(
    values: dict, version: str = f"1.{NEWEST}.0", chart: pathlib.Path = CHART, release: str = RELEASE
) -> list[dict]:
    done = helm("template", release, "--kube-version", version, values=values, chart=chart)
    if done.returncode:
        raise SystemExit(f"helm template with {values}: {done.stderr}")
    return [found for found in yaml.safe_load_all(done.stdout) if found]


def kustomize(folder: pathlib.Path, path: str, components: list[str], patches: list[dict]) -> list[dict]:
    kubernetes.combine(folder, path, components)
    file = folder / "kustomization.yaml"
    made = yaml.safe_load(file.read_text())
    monitors = [{"kind": "PodMonitor", "path": "spec/selector/matchLabels", "create": True}]
    own = {"app.kubernetes.io/managed-by": "Helm", "helm.sh/chart": f"tokentap-{VERSION}"}
    made["labels"] = [
        {"pairs": {"app.kubernetes.io/instance": RELEASE}, "includeSelectors": True, "fields": monitors},
        {"pairs": own},
    ]
    if patches:
        made["patches"] = [{"patch": yaml.safe_dump(patches), "target": {"kind": "Deployment"}}]
    file.write_text(yaml.safe_dump(made))
    return kubernetes.build(folder)


def by_name(found: list[dict]) -> dict[str, dict]:
    named = {f"{item['kind']} {item['metadata']['name']}": item for item in found}
    assert len(named) == len(found), "two objects have one name"
    return named


def differences(a: object, b: object, path: str = "") -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        return [line for key in sorted({*a, *b}) for line in differences(a.get(key), b.get(key), f"{path}.{key}")]
    if isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        return [line for at, pair in enumerate(zip(a, b, strict=True)) for line in differences(*pair, f"{path}[{at}]")]
    # Kubernetes does not tell an empty list from an absent one
    a, b = (None if of == [] else of for of in (a, b))
    return [] if a == b else [f"{path}: Helm {json.dumps(a)[:200]}, kustomize {json.dumps(b)[:200]}"]


def compare(title: str, rendered: list[dict], built: list[dict]) -> None:
    ours, theirs = by_name(rendered), by_name(built)
    wrong = differences(ours, theirs)
    if wrong:
        raise SystemExit(f"helm: {title}: the chart differs from deploy/kubernetes:\n" + "\n".join(wrong[:20]))


def check_same(folder: pathlib.Path) -> None:
    for title, (values, path, components, patches) in SAME.items():
        rendered = render(values)
        compare(title, rendered, kustomize(folder, path, components, patches))
        since = kubernetes.oldest(path, components)
        for minor in (since, NEWEST):
            for item in render(values, f"1.{minor}.0"):
                kubernetes.validate(f"helm: {title}", item, minor)
        print(f"helm: {title}: {len(rendered)} objects, equal to kustomize's, valid for 1.{since} and 1.{NEWEST}")


def check_valkey() -> None:
    base = by_name(render({}))
    rendered = {name: item for name, item in by_name(render({"valkey": {"enabled": True}})).items() if name not in base}
    annotations = rendered["StatefulSet valkey"]["spec"]["template"]["metadata"].pop("annotations")
    assert set(annotations) == {"checksum/settings"}, annotations
    for item in rendered.values():
        labels = item["metadata"].pop("labels")
        assert labels["app.kubernetes.io/managed-by"] == "Helm", labels
    text = re.sub(r"\bvalkey-[a-z0-9]{10}\b", "valkey", json.dumps(kubernetes.valkey()))
    compare("valkey", list(rendered.values()), json.loads(text))
    for minor in (25, NEWEST):
        for item in rendered.values():
            kubernetes.validate("helm: valkey", item, minor)
    print(f"helm: valkey: {len(rendered)} objects, equal to kustomize's")


def check_parent(folder: pathlib.Path) -> None:
    """A chart of one's own that includes the parts of the pod in its workload."""
    parent = folder / "parent"
    shutil.copytree(DEPLOY / "check/helm", parent)
    shutil.copytree(CHART, parent / "charts/tokentap")
    values = {"tokentap": {key: {"enabled": True} for key in ("monitoring", "tls", "gpuDra")}}
    rendered = render(values, chart=parent)
    compare("a chart of one's own", rendered, kustomize(folder, "../check/own", [], []))
    print(f"helm: a chart of one's own: {len(rendered)} objects, equal to kustomize's")


def refused(done: subprocess.CompletedProcess[str], values: dict, error: str) -> None:
    spellings = {error, error[1:].replace("/", ".")} if error.startswith("/") else {error}
    if not done.returncode or not any(spelling in done.stderr for spelling in spellings):
        raise SystemExit(
            f"helm: {values} must be refused with {error!r}, not with:\n{done.stderr or done.stdout[:500]}"
        )


def check_refused() -> None:
    newest = [(f"1.{NEWEST}.0", *wrong) for wrong in REFUSED]
    for version, values, error in newest + OLD:
        refused(helm("template", RELEASE, "--kube-version", version, values=values), values, error)
    for release, values, error in NAMES:
        refused(helm("template", release, values=values), values, error)
    print(f"helm: {len(REFUSED) + len(OLD) + len(NAMES)} wrong values, each refused by its name")


def check_accepted() -> None:
    for release, values in ACCEPTED:
        for item in render(values, release=release):
            kubernetes.validate(f"helm: release {release} with {values}", item, NEWEST)
            for name in (item["metadata"]["name"], *item["metadata"]["labels"].values()):
                assert isinstance(name, str), f"helm: release {release}: {item['kind']} has the name or label {name!r}"
            if values.get("gpuDra") and item["kind"] == "Deployment":
                kubernetes.check_gpu(item["spec"]["template"]["spec"])
    print(f"helm: {len(ACCEPTED)} unusual values, each valid")


def check_links(folder: pathlib.Path) -> None:
    """A copy of the chart without its symbolic links is refused, not rendered with empty objects."""
    chart = folder / "unlinked"
    shutil.copytree(CHART, chart)
    values = {"monitoring": {"enabled": True}, "valkey": {"enabled": True}}
    links = [path for path in CHART.rglob("*") if path.is_symlink()]
    assert len(links) == 7, links
    for link in links:
        file = chart / link.relative_to(CHART)
        text = file.read_text()
        file.unlink()
        refused(helm("template", RELEASE, values=values, chart=chart), values, f"{link.relative_to(CHART)} is missing")
        # git without core.symlinks
        file.write_text(str(link.readlink()))
        refused(helm("template", RELEASE, values=values, chart=chart), values, f"{link.relative_to(CHART)} is missing")
        file.write_text(text)
    render(values, chart=chart)
    print(f"helm: {len(links)} symbolic links, each missed by its name")


def check_values() -> None:
    """The schema has every value, and each has a comment before it, or belongs to one that has."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    known = set(schema["properties"]) - {"global"}
    assert known == set(defaults), f"values.yaml and values.schema.json differ in {known ^ set(defaults)}"
    for name, part in schema["properties"].items():
        if name not in ("global", "env") and "properties" in part:
            assert set(part["properties"]) == set(defaults[name]), (
                f"values.yaml and values.schema.json differ in {name}"
            )
    lines = (CHART / "values.yaml").read_text().splitlines()
    for before, line in itertools.pairwise(lines):
        assert re.match(r"\s|#|$", line) or before.startswith("#"), f"values.yaml: no comment before {line}"


def leaves(values: dict, defaults: dict, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The names of values, down to those that users set as a whole."""
    for name, default in defaults.items():
        if isinstance(default, dict) and default and name not in ("resources", "labels"):
            yield from leaves(values.get(name, {}), default, (*path, name))
        elif name in values:
            yield (*path, name)


def without(values: dict, path: tuple[str, ...]) -> dict:
    return {
        name: without(value, path[1:]) if name == path[0] else value
        for name, value in values.items()
        if (name,) != path
    }


def check_effects() -> None:
    """Each value has an effect, and what it renders is valid."""
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    paths = set(leaves(FULL, defaults))
    others = set(leaves(defaults, defaults)) - paths
    assert others == {("engine", "enabled"), ("engine", "nodes"), ("networkPolicy", "enabled")}, others
    rendered = render(FULL)
    for item in rendered:
        kubernetes.validate("helm: every value", item, NEWEST)
    for path in sorted(paths):
        if render(without(FULL, path)) == rendered:
            raise SystemExit(f"helm: the value {'.'.join(path)} has no effect")
    pods = [item["spec"]["template"]["spec"] for item in rendered if item["kind"] == "StatefulSet"]
    assert [pod["imagePullSecrets"] for pod in pods] == [FULL["imagePullSecrets"]] * 2, "pods lack the pull secrets"
    # (drain, preStop), and the grace period
    for (drain, sleep), wanted in {(600, 10): 660, (60, 5): 115, (1_000_000, 120): 1_000_170}.items():
        [pod] = (
            item["spec"]["template"]["spec"]
            for item in render({"drainTimeoutSeconds": drain, "engine": {"preStopSeconds": sleep}})
            if item["kind"] == "Deployment"
        )
        assert pod["terminationGracePeriodSeconds"] == wanted, pod["terminationGracePeriodSeconds"]
        env = {entry["name"]: entry.get("value") for entry in pod["initContainers"][0]["env"]}
        assert env["TOKENTAP_DRAIN_TIMEOUT"] == f"{drain}s", env
    monitor = next(item for item in rendered if item["kind"] == "PodMonitor")
    credentials = {"credentials": {"name": FULL["secretName"], "key": "agent-token"}}
    sent = {end["port"]: end.get("authorization") for end in monitor["spec"]["podMetricsEndpoints"]}
    assert sent == {"tokentap-ctl": None, "tokentap": credentials}, sent
    kinds = {item["kind"] for item in render({"monitoring": {"enabled": True}, "networkPolicy": {"enabled": False}})}
    assert "PodMonitor" in kinds, kinds
    assert "NetworkPolicy" not in kinds, kinds
    group = render({"engine": {"kind": "LeaderWorkerSet", "nodes": 4}})
    assert group[-1]["spec"]["leaderWorkerTemplate"]["size"] == 4, group[-1]
    print(f"helm: {len(paths)} values, each with an effect")


def check_policies() -> None:
    """The clients of other namespaces reach their ports, and no others."""
    found = render(FULL)
    workload = next(item for item in found if item["kind"] == "StatefulSet" and item["metadata"]["name"] != "valkey")
    callers = [
        ({"tokentap-agent": "true"}, "agents", [30001]),
        ({"tokentap-agent": "true"}, "trainers", []),
        ({"tokentap-trainer": "true"}, "trainers", [30001, 30002]),
        ({"tokentap-trainer": "true"}, "agents", []),
        ({}, "routers", [30001]),
        ({}, "ingress", [30002]),
        ({}, "trainers", []),
    ]
    for labels, namespace, wanted in callers:
        got = [port for port in (30000, 30001, 30002) if names.admits(found, workload, labels, port, namespace)]
        assert got == wanted, f"{labels} of namespace {namespace} may connect to {got}, expected {wanted}"
    print(f"helm: {len(callers)} clients of other namespaces")


def check_lint() -> None:
    for values in ({}, SAME["fleet"][0] | {"valkey": {"enabled": True}}, SAME["group"][0]):
        done = helm("lint", "--strict", "--kube-version", f"1.{NEWEST}.0", values=values)
        if done.returncode:
            raise SystemExit(f"helm lint with {values}:\n{done.stdout}{done.stderr}")
    print("helm: lint --strict")


def main() -> None:
    check_lint()
    check_values()
    check_refused()
    check_accepted()
    check_effects()
    check_policies()
    with tempfile.TemporaryDirectory(dir=DEPLOY.parent / "target") as folder:
        check_links(pathlib.Path(folder))
        check_same(pathlib.Path(folder))
        check_parent(pathlib.Path(folder))
    check_valkey()


if __name__ == "__main__":
    main()
