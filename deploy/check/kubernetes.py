"""deploy/kubernetes: builds everything, validates it for each Kubernetes it is for, and checks what no schema knows.

Custom resources have no schema in kubernetes-validate. Those of the Prometheus operator are read by models made of its
definitions (0.80), strictly; of a LeaderWorkerSet only the leader's pod is validated, as a Pod.
"""

import copy
import json
import pathlib
import re
import subprocess
import sys

import kubernetes_validate
import yaml
from cloudcoil.models.prometheus_operator.v1 import PodMonitor, PrometheusRule

DEPLOY = pathlib.Path(__file__).resolve().parent.parent
KUBERNETES = DEPLOY / "kubernetes"
KUBECTL = pathlib.Path(sys.executable).parent / "kubectl"
NEWEST = 37
# folder: the oldest Kubernetes (1.x) that it is for
BUILDS = {
    "base": 29,
    "examples/statefulset": 29,
    "examples/leaderworkerset": 29,
    # the oldest that the validator has schemas of
    "overlays/plain": 25,
    "overlays/gpu-dra": 34,
    "overlays/monitoring": 29,
}
MODELS = {"PodMonitor": PodMonitor, "PrometheusRule": PrometheusRule}
WORKLOADS = {
    "Deployment": ("template",),
    "StatefulSet": ("template",),
    "LeaderWorkerSet": ("leaderWorkerTemplate", "leaderTemplate"),
}


def build(folder: pathlib.Path) -> list[dict]:
    done = subprocess.run([KUBECTL, "kustomize", folder], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"kubectl kustomize {folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def template(workload: dict) -> dict:
    found = workload["spec"]
    for key in WORKLOADS[workload["kind"]]:
        found = found[key]
    return found


def validate(where: str, found: dict, minor: int) -> None:
    kind = found["kind"]
    if kind in MODELS:
        # the models let unknown members pass; they are then missing from what the model prints
        if MODELS[kind].model_validate(found).model_dump(by_alias=True, exclude_unset=True, mode="json") != found:
            raise SystemExit(f"{where}: {kind} has members that it does not know")
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


def sidecar(spec: dict, native: bool) -> dict:
    of = {key: [c for c in spec.get(key, []) if c["name"] == "tokentap"] for key in ("containers", "initContainers")}
    here, elsewhere = ("initContainers", "containers") if native else ("containers", "initContainers")
    assert len(of[here]) == 1, f"one tokentap under {here}"
    assert not of[elsewhere], f"no tokentap under {elsewhere}"
    found = of[here][0]
    policy = "Always" if native else None
    assert found.get("restartPolicy") == policy, "a native sidecar is restarted always, a container has no policy"
    return found


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
    """What was there before the component came is there still."""
    after = copy.deepcopy(after)
    pod = template(after)
    del pod["metadata"]["labels"]["tokentap"], pod["spec"]["terminationGracePeriodSeconds"]
    for key in ("initContainers", "volumes"):
        pod["spec"][key] = [entry for entry in pod["spec"][key] if entry["name"] != "tokentap"]
        if not pod["spec"][key]:
            del pod["spec"][key]
    assert after == before, "the component changed something of the workload's own"


def check_ports(found: list[dict]) -> None:
    """Services and policies name ports that tokentap has; none names SGLang's."""
    ports = {"tokentap", "tokentap-ctl"}
    for item in found:
        if item["kind"] == "Service":
            named = [port["targetPort"] for port in item["spec"]["ports"]]
        elif item["kind"] == "NetworkPolicy":
            named = [port["port"] for rule in item["spec"]["ingress"] for port in rule.get("ports", [])]
        elif item["kind"] == "PodMonitor":
            named = [endpoint["port"] for endpoint in item["spec"]["podMetricsEndpoints"]]
        else:
            continue
        assert set(named) <= ports, f"{item['kind']} {item['metadata']['name']} names {named}"


def check(name: str, found: list[dict]) -> None:
    workload = next(item for item in found if item["kind"] in WORKLOADS)
    check_pod(template(workload), native=name != "overlays/plain")
    check_ports(found)
    if name == "base" or name.startswith("examples/"):
        check_untouched(yaml.safe_load((KUBERNETES / name / "sglang.yaml").read_text()), workload)
    if name == "overlays/gpu-dra":
        spec = workload["spec"]["template"]["spec"]
        pair = [sidecar(spec, True), next(c for c in spec["containers"] if c["name"] == "sglang")]
        assert all(c["resources"]["claims"] == [{"name": "gpu"}] for c in pair), "both containers name the claim"
        assert not pair[1]["resources"].get("limits"), "and none asks the device plugin for another GPU"
    if name == "overlays/monitoring":
        rule = next(item for item in found if item["kind"] == "PrometheusRule")
        rules = yaml.safe_load((DEPLOY / "prometheus/rules/tokentap.yml").read_text())
        assert rule["spec"] == rules, "it is not rules/tokentap.yml: bash deploy/check/prometheusrule.sh"
        dashboard = next(item for item in found if item["kind"] == "ConfigMap")["data"]["tokentap.json"]
        assert json.loads(dashboard) == json.loads((DEPLOY / "grafana/dashboards/tokentap.json").read_text())


def main() -> None:
    for name, oldest in BUILDS.items():
        found = build(KUBERNETES / name)
        for minor in range(oldest, NEWEST + 1):
            for item in found:
                validate(name, item, minor)
        try:
            check(name, found)
        except AssertionError as error:
            raise SystemExit(f"{name}: {error}") from error
        print(f"kubernetes: {name}: {len(found)} objects, valid for 1.{oldest} to 1.{NEWEST}")
    leaderless = subprocess.run([KUBECTL, "kustomize", DEPLOY / "check/leaderless"], capture_output=True, check=False)
    if not leaderless.returncode:
        raise SystemExit("a LeaderWorkerSet without a leaderTemplate must not build")
    known = {path.parent.relative_to(KUBERNETES).as_posix() for path in KUBERNETES.rglob("kustomization.yaml")}
    assert known == {*BUILDS, "component"}, f"folders that are not checked: {known ^ {*BUILDS, 'component'}}"


if __name__ == "__main__":
    main()
