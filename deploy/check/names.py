# SPDX-License-Identifier: Apache-2.0
"""Checks the references in a build: Services select their pods, trainers reach the control port, and policies admit agents.

A small model of label selectors and of NetworkPolicies, enough for what deploy/kubernetes uses.
"""

from collections.abc import Iterator

# the path to the template of the pod that serves HTTP
WORKLOADS = {
    "Deployment": ("template",),
    "StatefulSet": ("template",),
    "LeaderWorkerSet": ("leaderWorkerTemplate", "leaderTemplate"),
}
GROUP = "leaderworkerset.sigs.k8s.io/name"
SGLANG = 30000


def template(workload: dict) -> dict:
    found = workload["spec"]
    for key in WORKLOADS[workload["kind"]]:
        found = found[key]
    return found


def sidecar(spec: dict, native: bool) -> dict:
    of = {key: [c for c in spec.get(key, []) if c["name"] == "tokentap"] for key in ("containers", "initContainers")}
    here, elsewhere = ("initContainers", "containers") if native else ("containers", "initContainers")
    assert len(of[here]) == 1, f"one tokentap under {here}"
    assert not of[elsewhere], f"no tokentap under {elsewhere}"
    found = of[here][0]
    policy = "Always" if native else None
    assert found.get("restartPolicy") == policy, "a native sidecar is restarted always, a container has no policy"
    return found


def pod_labels(workload: dict) -> dict[str, str]:
    """The labels of its template, and those that the controller adds."""
    group = {GROUP: workload["metadata"]["name"]} if workload["kind"] == "LeaderWorkerSet" else {}
    return {**template(workload)["metadata"]["labels"], **group}


def selects(selector: dict, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}, f"unknown selector: {selector}"
    for wanted in selector.get("matchExpressions", []):
        assert wanted["operator"] in ("In", "Exists"), f"unknown operator: {wanted}"
        if wanted["key"] not in labels or labels[wanted["key"]] not in wanted.get("values", [labels[wanted["key"]]]):
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def resolved(port: int | str, spec: dict) -> int:
    """The number of a port in a Service or a policy. Every Kubernetes resolves names of containers, but not those of native sidecars."""
    if isinstance(port, int):
        return port
    named = {of["name"]: of["containerPort"] for c in spec["containers"] for of in c.get("ports", []) if "name" in of}
    assert port in named, f"no container has the port {port}, and before 1.33 that of a native sidecar is only found by number"
    return named[port]


def opened(port: dict, number: int, spec: dict) -> bool:
    first = resolved(port["port"], spec)
    return port.get("protocol", "TCP") == "TCP" and first <= number <= port.get("endPort", first)


def admits(found: list[dict], workload: dict, labels: dict[str, str], port: int, namespace: str) -> bool:
    """Whether a pod of a namespace with these labels may connect to a port."""
    for policy in (item["spec"] for item in found if item["kind"] == "NetworkPolicy"):
        if not selects(policy["podSelector"], pod_labels(workload)):
            continue
        for rule in policy["ingress"]:
            comes = any(
                selects(peer["podSelector"], labels)
                and selects(peer.get("namespaceSelector", {}), {"kubernetes.io/metadata.name": namespace})
                and ("namespaceSelector" in peer or namespace == "own")
                for peer in rule["from"]
            )
            if comes and ("ports" not in rule or any(opened(of, port, template(workload)["spec"]) for of in rule["ports"])):
                return True
    return False


def check_policies(found: list[dict], workload: dict, ports: dict[str, int]) -> None:
    data, control, group = ports["tokentap"], ports["tokentap-ctl"], 20000
    grouped = workload["kind"] == "LeaderWorkerSet"
    monitored = any(item["kind"] == "PodMonitor" for item in found)
    # labels, namespace, ports that are open
    callers = [
        ({}, "own", []),
        ({"tokentap-agent": "true"}, "own", [data]),
        ({"tokentap-agent": "true"}, "other", []),
        ({"tokentap-trainer": "true"}, "own", [data, control]),
        ({GROUP: "another"}, "own", [group] if grouped else []),
        ({"app.kubernetes.io/name": "prometheus"}, "monitoring", [data, control] if monitored else []),
        ({"app.kubernetes.io/name": "prometheus"}, "own", []),
    ]
    for labels, namespace, wanted in callers:
        got = [port for port in (data, control, SGLANG, group) if admits(found, workload, labels, port, namespace)]
        assert got == wanted, f"{labels} of namespace {namespace} may connect to {got}, expected {wanted}"


def expanded(workload: dict, env: list[dict]) -> dict[str, str]:
    """Expands variables like the kubelet: each may refer to earlier ones."""
    values = {}
    for entry in env:
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if path.startswith("metadata.annotations["):
            values[entry["name"]] = template(workload)["metadata"]["annotations"][path.split("'")[1]]
        elif path:
            values[entry["name"]] = {"status.podIPs": "10.0.0.1,fd00::1", "metadata.namespace": "ns"}[path]
        elif "secretKeyRef" in entry.get("valueFrom", {}):
            values[entry["name"]] = "secret"
        elif "value" in entry:
            text = entry["value"]
            for name, value in values.items():
                text = text.replace(f"$({name})", value)
            assert "$(" not in text, f"{entry['name']}: {text} refers to a variable that is not before it"
            values[entry["name"]] = text
    return values


def services(found: list[dict], labels: dict[str, str]) -> Iterator[tuple[str, dict]]:
    for item in found:
        if item["kind"] == "Service" and item["spec"]["selector"].items() <= labels.items():
            yield item["metadata"]["name"], item["spec"]


def check_services(found: list[dict], workload: dict, tokentap: dict, ports: dict[str, int]) -> None:
    """There is one Service for agents and one for trainers, and tokentap accepts all names of the second."""
    ours = {name: spec["ports"] for name, spec in services(found, pod_labels(workload)) if "tokentap" in spec["selector"]}
    of = {resolved(to[0]["targetPort"], template(workload)["spec"]): name for name, to in ours.items()}
    assert len(ours) == len(of) == 2, f"the pods are selected by {list(ours)}"
    assert set(of) == set(ports.values()), f"Services lead to {of}"
    control = of[ports["tokentap-ctl"]]
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] == control, "pods have names below the Service for trainers"
    forms = [control, f"{control}.ns", f"{control}.ns.svc", f"{control}.ns.svc.cluster.local"]
    wanted = {"10.0.0.1", "fd00::1", *forms, *(f".{form}" for form in forms)}
    hosts = set(expanded(workload, tokentap["env"])["TOKENTAP_CONTROL_HOST"].split(","))
    assert hosts == wanted, f"the control port accepts {sorted(hosts)}, but its names are {sorted(wanted)}"


def check(found: list[dict], native: bool) -> None:
    workloads = [item for item in found if item["kind"] in WORKLOADS]
    for workload in workloads:
        spec = template(workload)["spec"]
        tokentap = sidecar(spec, native)
        ports = {port["name"]: port["containerPort"] for port in tokentap["ports"]}
        check_services(found, workload, tokentap, ports)
        check_policies(found, workload, ports)
        templates = {item["metadata"]["name"] for item in found if item["kind"] == "ResourceClaimTemplate"}
        for claim in spec.get("resourceClaims", []):
            assert claim["resourceClaimTemplateName"] in templates, f"no {claim['resourceClaimTemplateName']}"
    for item in found:
        if item["kind"] == "Service":
            name = item["metadata"]["name"]
            met = [workload for workload in workloads if item["spec"]["selector"].items() <= pod_labels(workload).items()]
            assert len(met) == 1, f"Service {name} selects the pods of {len(met)} workloads"
            targets = {resolved(port["targetPort"], template(met[0])["spec"]) for port in item["spec"]["ports"]}
            assert SGLANG not in targets, f"Service {name} bypasses tokentap"
        elif item["kind"] == "PodMonitor":
            # names, because Prometheus reads them from the pod
            asked = {endpoint["port"] for endpoint in item["spec"]["podMetricsEndpoints"]}
            assert asked == {"tokentap", "tokentap-ctl"}, f"Prometheus scrapes {asked}"
            for workload in workloads:
                assert selects(item["spec"]["selector"], pod_labels(workload)), "Prometheus selects the pods"
