# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: builds everything, validates it for each supported Kubernetes, and checks rules that are in no schema.

Custom resources have no schema in kubernetes-validate. Those of the Prometheus operator are parsed strictly by models
generated from its definitions (0.80). Of a LeaderWorkerSet only the leader's pod is validated, as a Pod. names.py checks the references.
"""

import copy
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import kubernetes_validate
import names
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule
from names import WORKLOADS, sidecar, template

DEPLOY = pathlib.Path(__file__).resolve().parent.parent
KUBERNETES = DEPLOY / "kubernetes"
KUBECTL = pathlib.Path(sys.executable).parent / "kubectl"
NEWEST = 37
# folder: the components that it has beside `sidecar`
BUILDS = {
    "base": [],
    "examples/statefulset": [],
    "examples/leaderworkerset": [],
    "examples/two": ["monitoring"],
    "overlays/plain": ["plain"],
    "overlays/gpu-dra": ["gpu-dra"],
    "overlays/monitoring": ["monitoring"],
    "overlays/tls": ["tls"],
    "overlays/fleet": ["fleet"],
    # a user's workload: other names, an init container, a Service
    "../check/own": ["monitoring", "tls", "gpu-dra"],
}
# generated here, as (resource, components): combinations on each kind of workload, with a suffix and a label
COMBINED = [
    ("base", ["monitoring", "tls"]),
    ("base", ["tls", "gpu-dra"]),
    ("base", ["tls", "plain"]),
    ("examples/statefulset", ["monitoring", "tls", "gpu-dra"]),
    ("examples/statefulset", ["tls", "plain"]),
    ("examples/statefulset", ["monitoring", "fleet", "tls", "gpu-dra"]),
    ("base", ["fleet", "plain"]),
    ("examples/leaderworkerset", ["monitoring", "tls"]),
    ("examples/leaderworkerset", ["fleet", "tls"]),
    ("examples/leaderworkerset", ["tls", "plain"]),
]
# parts of the builds above
PARTS = {"examples/two/a", "examples/two/b", *(f"components/{name}" for name in ("sidecar", "monitoring", "tls", "fleet", "gpu-dra", "plain"))}
MODELS = {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule}


def oldest(name: str, components: list[str]) -> int:
    """The oldest Kubernetes (1.x) that a build supports."""
    if "gpu-dra" in components or name == "examples/two":
        return 34
    # plain: the oldest version with a schema in the validator
    return 25 if "plain" in components else 29


def combine(folder: pathlib.Path, name: str, components: list[str]) -> None:
    """Writes a kustomization as a user would; below the project, because kustomize only accepts relative paths."""
    here = [os.path.relpath(KUBERNETES / path, folder) for path in (name, *(f"components/{of}" for of in components))]
    labels = [{"pairs": {"workload": "x"}, "includeSelectors": True}]
    made = {"resources": here[:1], "components": here[1:], "nameSuffix": "-x", "labels": labels}
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(made))


def build(folder: pathlib.Path) -> list[dict]:
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"kubectl kustomize {folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def validate(where: str, found: dict, minor: int) -> None:
    kind = found["kind"]
    if kind in MODELS:
        # the models ignore unknown members, which are then missing in their output
        if MODELS[kind].model_validate(found).model_dump(by_alias=True, exclude_unset=True, mode="json") != found:
            raise SystemExit(f"{where}: {kind} has unknown members")
        return
    if kind == "LeaderWorkerSet":
        found = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "leader"}, "spec": template(found)["spec"]}
    try:
        kubernetes_validate.validate(found, f"1.{minor}", strict=True)
    except kubernetes_validate.ValidationError as error:
        path = ".".join(map(str, error.path))
        raise SystemExit(f"{where}: {found['kind']} for 1.{minor}: {path}: {error.message}") from error


def seconds(text: str) -> int:
    return int(re.fullmatch(r"(\d+)s", text)[1])


def size(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)(Gi|Mi)B?", text).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def check_pod(pod: dict, native: bool) -> None:
    spec = pod["spec"]
    assert pod["metadata"]["labels"]["tokentap"] == "sidecar", "the Services find the pod"
    tokentap = sidecar(spec, native)
    probes = {name: tokentap[name]["httpGet"]["path"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probes == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}, probes
    for container in spec["containers"] + spec.get("initContainers", []):
        text = json.dumps({key: value for key, value in container.items() if key.endswith("Probe")})
        assert not re.search("health|generate", text), f"a probe of {container['name']} generates tokens"

    env = {entry["name"]: entry.get("value") for entry in tokentap["env"]}
    ports = {port["name"]: f"[::]:{port['containerPort']}" for port in tokentap["ports"]}
    listens = {"tokentap": env["TOKENTAP_LISTEN"], "tokentap-ctl": env["TOKENTAP_CONTROL_LISTEN"]}
    assert ports == listens, "the named ports are listened on, by IPv4 and IPv6"
    sleep = max(int(c["lifecycle"]["preStop"]["exec"]["command"][1]) for c in spec["containers"] if "lifecycle" in c)
    drain = seconds(env["TOKENTAP_DRAIN_TIMEOUT"])
    assert spec["terminationGracePeriodSeconds"] > sleep + drain, "the pod is killed before its last generation ends"

    context = tokentap["securityContext"]
    assert context["runAsNonRoot"]
    assert context["readOnlyRootFilesystem"]
    assert not context["allowPrivilegeEscalation"]
    assert context["capabilities"] == {"drop": ["ALL"]}
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert set(tokentap["resources"]["limits"]) == {"memory"}, "a limit of CPU shows up as latency"
    writable = [mount for mount in tokentap["volumeMounts"] if not mount.get("readOnly")]
    assert [mount["mountPath"] for mount in writable] == [env["TOKENTAP_DATA_DIR"]], "one place to write to"
    volume = next(volume for volume in spec["volumes"] if volume["name"] == writable[0]["name"])
    room = size(volume["emptyDir"]["sizeLimit"])
    assert room > size(env["TOKENTAP_DATA_BYTES"]), "the pod would be evicted by its own log"


def check_untouched(before: dict, after: dict) -> None:
    """The component keeps all parts of the workload."""
    after = copy.deepcopy(after)
    pod = template(after)
    del pod["metadata"]["labels"]["tokentap"], pod["spec"]["terminationGracePeriodSeconds"]
    # also the workers of a LeaderWorkerSet
    parts = after["spec"].get("leaderWorkerTemplate", after["spec"])
    for part in (parts[name] for name in ("template", "leaderTemplate", "workerTemplate") if name in parts):
        assert part["spec"].pop("enableServiceLinks") is False, "SGLang reads SGLANG_PORT of the Service"
    del pod["metadata"]["annotations"]["tokentap-control"]
    if not pod["metadata"]["annotations"]:
        del pod["metadata"]["annotations"]
    for key in ("initContainers", "volumes"):
        pod["spec"][key] = [entry for entry in pod["spec"][key] if entry["name"] != "tokentap"]
        if not pod["spec"][key]:
            del pod["spec"][key]
    assert after == before, "the component changed a part of the workload"


def check_tls(spec: dict, native: bool) -> None:
    """The TLS files are those of the secret, and all probes use TLS."""
    tokentap = sidecar(spec, native)
    volume = next(volume for volume in spec["volumes"] if "secret" in volume)
    mount = next(mount for mount in tokentap["volumeMounts"] if mount["name"] == volume["name"])
    assert mount["readOnly"] and "subPath" not in mount, "a subPath is not updated with its secret"
    # the mode lets tokentap read its key without an fsGroup; no other container mounts it
    assert volume["secret"]["defaultMode"] == 0o444, f"the key has mode {volume['secret']['defaultMode']:o}"
    containers = [c for key in ("initContainers", "containers") for c in spec.get(key, [])]
    having = [c["name"] for c in containers if any(of["name"] == volume["name"] for of in c["volumeMounts"])]
    assert having == ["tokentap"], f"the key is mounted in {having}"
    env = {entry["name"]: entry.get("value") for entry in tokentap["env"]}
    for name, file in (("TOKENTAP_TLS_CERT", "tls.crt"), ("TOKENTAP_TLS_KEY", "tls.key")):
        assert env[name] == f"{mount['mountPath']}/{file}", f"{name} is a file of the secret"
    for name in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert tokentap[name]["httpGet"]["scheme"] == "HTTPS", f"{name} uses TLS"


def check_gpu(spec: dict) -> None:
    pair = [sidecar(spec, True), spec["containers"][0]]
    claims = [{"name": claim["name"]} for claim in spec["resourceClaims"]]
    assert all(c["resources"]["claims"] == claims for c in pair), "both containers name the claim"
    asked = {name for kind in ("limits", "requests") for name in pair[1]["resources"].get(kind, {})}
    assert "nvidia.com/gpu" not in asked, "no container requests another GPU from the device plugin"


def valkey() -> list[dict]:
    return build(KUBERNETES / "valkey")


def check_fleet(found: list[dict], spec: dict, native: bool) -> None:
    """The sidecar names each Valkey, the secret that its server reads, and the primary of the Sentinels."""
    servers = next(item for item in valkey() if item["kind"] == "StatefulSet")
    name, service = servers["metadata"]["name"], servers["spec"]["serviceName"]
    env = {entry["name"]: entry for entry in sidecar(spec, native)["env"]}
    hosts = ",".join(f"{name}-{number}.{service}" for number in range(servers["spec"]["replicas"]))
    primary = re.search(r"^sentinel monitor (\S+) (\S+) 6379 2$", (KUBERNETES / "valkey/sentinel.conf").read_text(), re.M)
    assert primary[2] == f"{name}-0.{service}", primary[0]
    wanted = f"redis-sentinel://tokentap:$(VALKEY_PASSWORD)@{hosts}/{primary[1]}"
    assert env["TOKENTAP_LEDGER"]["value"] == wanted, f"the ledger is {env['TOKENTAP_LEDGER']}, expected {wanted}"
    secret = env["VALKEY_PASSWORD"]["valueFrom"]["secretKeyRef"]
    prepare = {entry["name"]: entry for entry in template(servers)["spec"]["initContainers"][0]["env"]}
    assert secret == prepare["CLIENT_PASSWORD"]["valueFrom"]["secretKeyRef"], f"tokentap and Valkey read different secrets: {secret}"
    agents = next(item for item in found if item["kind"] == "Service" and item["spec"]["ports"][0]["port"] == 30000)
    assert agents["spec"]["sessionAffinity"] == "None", "any pod continues a session"


def check_valkey() -> None:
    """Valkey keeps sessions, and only tokentap reaches it."""
    found = valkey()
    for minor in range(25, NEWEST + 1):
        for item in found:
            validate("valkey", item, minor)
    of = {item["kind"]: item for item in found}
    spec = template(of["StatefulSet"])["spec"]
    labels = names.pod_labels(of["StatefulSet"])
    for kind, selector in (("Service", of["Service"]["spec"]["selector"]), ("PodDisruptionBudget", of["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"])):
        assert selector.items() <= labels.items(), f"the {kind} does not select the pods"
    assert of["Service"]["spec"]["publishNotReadyAddresses"], "a Sentinel could not find its primary at the start"
    assert of["Service"]["metadata"]["name"] == of["StatefulSet"]["spec"]["serviceName"], "the pods have no names"
    away = spec["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]
    assert names.selects(away["labelSelector"], labels) and away["topologyKey"] == "kubernetes.io/hostname", away
    assert of["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1 and of["StatefulSet"]["spec"]["replicas"] == 3, "two Sentinels elect"
    settings = of["ConfigMap"]["data"]
    for line in ("appendonly yes", "maxmemory-policy noeviction", "min-replicas-to-write 1"):
        assert line in settings["valkey.conf"].splitlines(), f"valkey.conf lacks {line}"
    for users in ("users.acl", "sentinel.acl"):
        assert settings[users].startswith("user default off\n"), f"{users} lets anybody in"
        assert "nopass" not in settings[users] and "+@all" not in settings[users], f"{users} allows too much"
    assert re.search(r"^user tokentap on TOKENTAP resetkeys resetchannels ~tt:\* -@all ", settings["users.acl"], re.M), "keys of tokentap"
    memory = re.search(r"^maxmemory (\d+)gb$", settings["valkey.conf"], re.M)
    assert size(spec["containers"][0]["resources"]["limits"]["memory"]) >= 2 * int(memory[1]) << 30, "a rewrite of the file needs as much again"
    for container in spec["initContainers"] + spec["containers"]:
        context = container["securityContext"]
        assert context == {"readOnlyRootFilesystem": True, "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}, context
    callers = [({"tokentap": "sidecar"}, "own", True), (labels, "own", True), ({"tokentap-agent": "true"}, "own", False), ({}, "own", False),
               ({"tokentap": "sidecar"}, "other", False)]  # fmt: skip
    for caller, namespace, wanted in callers:
        for port in (6379, 26379):
            got = names.admits(found, of["StatefulSet"], caller, port, namespace)
            assert got == wanted, f"{caller} of namespace {namespace} {'reaches' if got else 'does not reach'} port {port}"
    print(f"kubernetes: valkey: {len(found)} objects, valid for 1.25 to 1.{NEWEST}")


def check_own(found: list[dict]) -> None:
    """No component confuses a container or a Service with another."""
    spec = next(template(item) for item in found if item["kind"] == "Deployment")["spec"]
    names = [c["name"] for key in ("initContainers", "containers") for c in spec[key]]
    assert names == ["fetch", "tokentap", "engine"], names
    assert spec["containers"][0]["resources"]["limits"] == {"memory": "64Gi"}, "the memory limit is unchanged"
    own = {"runAsUser": 1000, "fsGroup": 2000, "fsGroupChangePolicy": "OnRootMismatch"}
    assert spec["securityContext"] == own, f"user and groups are unchanged, not {spec['securityContext']}"
    admin = next(item for item in found if item["metadata"]["name"] == "admin")
    assert admin["spec"]["ports"][0]["appProtocol"] == "grpc", "the workload's own Service is unchanged"


def check_monitoring(found: list[dict], scheme: str) -> None:
    monitor = next(item for item in found if item["kind"] == "PodMonitor")
    spoken = {endpoint.get("scheme", "http") for endpoint in monitor["spec"]["podMetricsEndpoints"]}
    assert spoken == {scheme}, f"Prometheus uses {spoken}"
    rule = next(item for item in found if item["kind"] == "PrometheusRule")
    rules = yaml.safe_load((DEPLOY / "prometheus/rules/tokentap.yml").read_text())
    assert rule["spec"] == rules, "it differs from rules/tokentap.yml: run bash deploy/check/prometheusrule.sh"
    dashboard = next(item for item in found if item["kind"] == "ConfigMap")["data"]["tokentap.json"]
    assert json.loads(dashboard) == json.loads((DEPLOY / "grafana/dashboards/tokentap.json").read_text())


def check(name: str, components: list[str], found: list[dict]) -> None:
    native = "plain" not in components
    names.check(found, native)
    for workload in (item for item in found if item["kind"] in WORKLOADS):
        check_pod(template(workload), native)
        spec = template(workload)["spec"]
        if "tls" in components:
            check_tls(spec, native)
        if "gpu-dra" in components:
            check_gpu(spec)
        if "fleet" in components:
            check_fleet(found, spec, native)
        if not components:
            check_untouched(yaml.safe_load((KUBERNETES / name / "sglang.yaml").read_text()), workload)
    services = [item for item in found if item["kind"] == "Service" and "tokentap" in item["spec"]["selector"]]
    spoken = {port["appProtocol"] for service in services for port in service["spec"]["ports"]}
    assert spoken == {"https" if "tls" in components else "http"}, f"the Services have {spoken}"
    if "monitoring" in components:
        check_monitoring(found, "https" if "tls" in components else "http")
    if name == "../check/own":
        check_own(found)


def judge(name: str, components: list[str], folder: pathlib.Path) -> None:
    found = build(folder)
    since = oldest(name, components)
    alone = folder == KUBERNETES / name
    # its parts were validated alone for the versions between
    for minor in range(since, NEWEST + 1) if alone else (since, NEWEST):
        for item in found:
            validate(name, item, minor)
    title = name if alone else f"{name}, {', '.join(components)}"
    try:
        check(name, components, found)
    except AssertionError as error:
        raise SystemExit(f"{title}: {error}") from error
    print(f"kubernetes: {title}: {len(found)} objects, valid for 1.{since} {'to' if alone else 'and'} 1.{NEWEST}")


def refused(folder: pathlib.Path, what: str) -> None:
    if not subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, check=False).returncode:
        raise SystemExit(f"{what} must not build")


def main() -> None:
    for name, components in BUILDS.items():
        judge(name, components, KUBERNETES / name)
    with tempfile.TemporaryDirectory(dir=DEPLOY.parent / "target") as folder:
        for name, components in COMBINED:
            combine(pathlib.Path(folder), name, components)
            judge(name, components, pathlib.Path(folder))
        # in the wrong order, the last component would undo the first
        for wrong in (["tls", "sidecar"], ["fleet", "sidecar"], ["gpu-dra", "sidecar"], ["plain", "sidecar"]):
            combine(pathlib.Path(folder), "../check/own/engine", wrong)
            refused(pathlib.Path(folder), f"{wrong[0]} before sidecar")
    refused(DEPLOY / "check/leaderless", "a LeaderWorkerSet without a leaderTemplate")
    known = {path.parent.relative_to(KUBERNETES).as_posix() for path in KUBERNETES.rglob("kustomization.yaml")}
    try:
        check_valkey()
    except AssertionError as error:
        raise SystemExit(f"valkey: {error}") from error
    checked = {"valkey", *PARTS, *(name for name in BUILDS if not name.startswith(".."))}
    assert known == checked, f"folders that are not checked: {known ^ checked}"


if __name__ == "__main__":
    main()
