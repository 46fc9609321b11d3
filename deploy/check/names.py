"""Who finds whom in a build: Services their pods, trainers the control port, agents their way through the policies.

A small model of label selectors and of NetworkPolicies, enough for what deploy/kubernetes uses.
"""

from collections.abc import Iterator

# where the pod is that speaks HTTP
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
    """Those of its template, and what the controller adds."""
    group = {GROUP: workload["metadata"]["name"]} if workload["kind"] == "LeaderWorkerSet" else {}
    return {**template(workload)["metadata"]["labels"], **group}


def selects(selector: dict, labels: dict[str, str]) -> bool:
    assert set(selector) <= {"matchLabels", "matchExpressions"}, f"a selector that this does not know: {selector}"
    for wanted in selector.get("matchExpressions", []):
        assert wanted["operator"] in ("In", "Exists"), f"an operator that this does not know: {wanted}"
        if wanted["key"] not in labels or labels[wanted["key"]] not in wanted.get("values", [labels[wanted["key"]]]):
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def opened(port: dict, number: int, name: str | None) -> bool:
    if port.get("protocol", "TCP") != "TCP":
        return False
    first = port["port"]
    return first == name if isinstance(first, str) else first <= number <= port.get("endPort", first)


def admits(found: list[dict], to: dict, labels: dict[str, str], port: tuple[int, str | None], namespace: str) -> bool:
    """Whether a pod of a namespace with these labels may come to a port."""
    for policy in (item["spec"] for item in found if item["kind"] == "NetworkPolicy"):
        if not selects(policy["podSelector"], to):
            continue
        for rule in policy["ingress"]:
            comes = any(
                selects(peer["podSelector"], labels)
                and selects(peer.get("namespaceSelector", {}), {"kubernetes.io/metadata.name": namespace})
                and ("namespaceSelector" in peer or namespace == "own")
                for peer in rule["from"]
            )
            if comes and ("ports" not in rule or any(opened(of, *port) for of in rule["ports"])):
                return True
    return False


def check_policies(found: list[dict], workload: dict, ports: dict[str, int]) -> None:
    to = pod_labels(workload)
    data, control = (ports["tokentap"], "tokentap"), (ports["tokentap-ctl"], "tokentap-ctl")
    sglang, group = (SGLANG, None), (20000, None)
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
        got = [port for port in (data, control, sglang, group) if admits(found, to, labels, port, namespace)]
        assert got == wanted, f"{labels} of namespace {namespace} may come to {got}, and should to {wanted}"


def expanded(workload: dict, env: list[dict]) -> dict[str, str]:
    """Variables as the kubelet makes them: each may name those before it."""
    values = {}
    for entry in env:
        path = entry.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if path.startswith("metadata.annotations["):
            values[entry["name"]] = template(workload)["metadata"]["annotations"][path.split("'")[1]]
        elif path:
            values[entry["name"]] = {"status.podIPs": "10.0.0.1,fd00::1", "metadata.namespace": "ns"}[path]
        elif "value" in entry:
            text = entry["value"]
            for name, value in values.items():
                text = text.replace(f"$({name})", value)
            assert "$(" not in text, f"{entry['name']}: {text} names what does not come before it"
            values[entry["name"]] = text
    return values


def services(found: list[dict], labels: dict[str, str]) -> Iterator[tuple[str, dict]]:
    for item in found:
        if item["kind"] == "Service" and item["spec"]["selector"].items() <= labels.items():
            yield item["metadata"]["name"], item["spec"]


def check_services(found: list[dict], workload: dict, tokentap: dict) -> None:
    """One for agents, one for trainers, and the second is known to tokentap by all its names."""
    of = {spec["ports"][0]["targetPort"]: name for name, spec in services(found, pod_labels(workload)) if "tokentap" in spec["selector"]}
    ours = [name for name, spec in services(found, pod_labels(workload)) if "tokentap" in spec["selector"]]
    assert len(ours) == len(of) == 2, f"the pods are found by {ours}"
    control = of["tokentap-ctl"]
    if workload["kind"] == "StatefulSet":
        assert workload["spec"]["serviceName"] == control, "pods have names under the Service that trainers ask"
    forms = [control, f"{control}.ns", f"{control}.ns.svc", f"{control}.ns.svc.cluster.local"]
    wanted = {"10.0.0.1", "fd00::1", *forms, *(f".{form}" for form in forms)}
    hosts = set(expanded(workload, tokentap["env"])["TOKENTAP_CONTROL_HOST"].split(","))
    assert hosts == wanted, f"the control port knows {sorted(hosts)}, and is asked as {sorted(wanted)}"


def check(found: list[dict], native: bool) -> None:
    workloads = [item for item in found if item["kind"] in WORKLOADS]
    for workload in workloads:
        spec = template(workload)["spec"]
        tokentap = sidecar(spec, native)
        ports = {port["name"]: port["containerPort"] for port in tokentap["ports"]}
        check_services(found, workload, tokentap)
        check_policies(found, workload, ports)
        templates = {item["metadata"]["name"] for item in found if item["kind"] == "ResourceClaimTemplate"}
        for claim in spec.get("resourceClaims", []):
            assert claim["resourceClaimTemplateName"] in templates, f"no {claim['resourceClaimTemplateName']}"
    for item in found:
        if item["kind"] == "Service":
            met = sum(item["spec"]["selector"].items() <= pod_labels(workload).items() for workload in workloads)
            assert met == 1, f"Service {item['metadata']['name']} finds the pods of {met} workloads"
            # SGLang's port is named by none
            assert {port["targetPort"] for port in item["spec"]["ports"]} <= {"tokentap", "tokentap-ctl", "admin"}
        elif item["kind"] == "PodMonitor":
            assert {endpoint["port"] for endpoint in item["spec"]["podMetricsEndpoints"]} == {"tokentap", "tokentap-ctl"}
            for workload in workloads:
                assert selects(item["spec"]["selector"], pod_labels(workload)), "Prometheus finds the pods"
