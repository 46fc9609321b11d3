# SPDX-License-Identifier: Apache-2.0
"""Checks every query of the rules and of the dashboard: it parses, and its metrics and labels exist.

tokentap's metrics and labels are those of docs/reference/metrics.md, which is generated from the code. SGLang's are
those of a recording of 0.5.23 (tests/fixtures). It also checks that each alert is tested firing and silent, and that Grafana can
provision the dashboard.
"""

import json
import pathlib
import re
from collections.abc import Iterator

import promql_parser as promql
import yaml

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "deploy/prometheus"
DASHBOARD = ROOT / "deploy/grafana/dashboards/tokentap.json"
SGLANG = ROOT / "tests/fixtures/sglang-0.5.23/default/info-metrics/response.body"
# labels of the scrape, of Kubernetes, and of histograms
EVERYWHERE = {"job", "instance", "namespace", "pod", "le", "__name__"}
# the values that Grafana would insert: times, and the selection "All"
VARIABLES = {"$__rate_interval": "1m", "$__range": "1h", "$model": ".*", "$namespace": ".*", "$instance": ".*"}


def base(name: str) -> str:
    return re.sub(r"_(bucket|sum|count)$", "", name)


def known() -> dict[str, set[str]]:
    """Metrics and their labels."""
    found = {}
    for row in re.findall(r"^\| `(tokentap_\w+)` \| ([^|]*)\|", (ROOT / "docs" / "reference" / "metrics.md").read_text(), re.M):
        found[row[0]] = {label.strip() for label in row[1].split(",") if label.strip()}
    for line in SGLANG.read_text().splitlines():
        if line.startswith("sglang:"):
            name, labels = re.match(r"([\w:]+)(?:\{(.*)\})?", line).groups()
            found.setdefault(base(name), set()).update(re.findall(r'(\w+)="', labels or ""))
    for name in ("process_cpu_seconds_total", "process_resident_memory_bytes", "process_open_fds"):
        found[name] = set()
    found["up"] = set()
    return found


def parsed(expr: str) -> promql.Expr:
    for variable, value in VARIABLES.items():
        expr = expr.replace(variable, value)
    assert "$" not in expr, f"unknown variable: {expr}"
    return promql.parse(expr)


def selectors(node: object) -> Iterator[promql.VectorSelector]:
    """All selectors below a node. An unknown node is an error, because it could hide selectors."""
    match node:
        case promql.VectorSelector():
            yield node
        case promql.MatrixSelector():
            yield from selectors(node.vector_selector)
        case promql.BinaryExpr():
            yield from selectors(node.lhs)
            yield from selectors(node.rhs)
        case promql.AggregateExpr() | promql.UnaryExpr() | promql.ParenExpr() | promql.SubqueryExpr():
            yield from selectors(node.expr)
        case promql.Call():
            for arg in node.args:
                yield from selectors(arg)
        case promql.NumberLiteral() | promql.StringLiteral():
            pass
        case _:
            raise AssertionError(f"an unknown node {node!r}")


def aggregates(node: object) -> Iterator[promql.AggregateExpr]:
    """All `sum by (...)` and the like below a node, those with labels."""
    below = {
        promql.BinaryExpr: ("lhs", "rhs"),
        promql.AggregateExpr: ("expr",),
        promql.ParenExpr: ("expr",),
        promql.UnaryExpr: ("expr",),
    }
    if isinstance(node, promql.AggregateExpr) and node.modifier:
        yield node
    for part in below.get(type(node), ()):
        yield from aggregates(getattr(node, part))
    for arg in node.args if isinstance(node, promql.Call) else ():
        yield from aggregates(arg)


def names(selector: promql.VectorSelector) -> list[str]:
    if selector.name:
        return [selector.name]
    of_name = [m.value for m in selector.matchers.matchers if m.name == "__name__"]
    assert len(of_name) == 1, "a selector names its metrics"
    return of_name[0].split("|")


def check_query(where: str, expr: str, metrics: dict[str, set[str]], recorded: set[str]) -> set[str]:
    """Checks one query. Returns the labels that its result may have, as far as they are known."""
    tree = parsed(expr)
    found = list(selectors(tree))
    assert found, f"{where}: no metric in {expr}"
    all_names = [name for selector in found for name in names(selector)]
    there = {label for name in all_names for label in metrics.get(base(name), metrics.get(name, ()))}
    grouped = {label for aggregate in aggregates(tree) for label in aggregate.modifier.labels}
    of_recorded = any(name in recorded for name in all_names)
    assert of_recorded or not grouped - there - EVERYWHERE, f"{where}: nothing has label {grouped - there - EVERYWHERE}"
    for selector in found:
        for name in names(selector):
            if name in recorded:
                continue
            assert base(name) in metrics or name in metrics, f"{where}: there is no metric {name}"
            labels = {matcher.name for matcher in selector.matchers.matchers}
            unknown = labels - metrics.get(name, metrics.get(base(name), set())) - EVERYWHERE
            assert not unknown, f"{where}: {name} has no label {unknown}"
    if grouped:
        return grouped
    return there | EVERYWHERE | {"model_name", "endpoint", "outcome"} if of_recorded else there | EVERYWHERE


def panels(board: dict) -> Iterator[dict]:
    for panel in board["panels"]:
        if panel["type"] != "row":
            yield panel


def check_dashboard(metrics: dict[str, set[str]], recorded: set[str]) -> int:
    board = json.loads(DASHBOARD.read_text())
    assert board["id"] is None, "provisioning sets the id"
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids)), "ids of panels are distinct"
    queries = 0
    taken = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        right = place["x"] + place["w"]
        cells = {(x, y) for x in range(place["x"], right) for y in range(place["y"], place["y"] + place["h"])}
        assert right <= 24, f"{panel['title']} does not fit"
        assert not cells & taken, f"{panel['title']} overlaps another panel"
        taken |= cells
    for panel in panels(board):
        title = panel["title"]
        assert panel["datasource"]["uid"] == "${datasource}", f"{title}: the datasource is the variable"
        assert panel["fieldConfig"]["defaults"]["unit"], f"{title}: a unit"
        assert panel["description"], f"{title}: a description"
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs)) > 0, title
        for target in panel["targets"]:
            labels = check_query(f"dashboard, {title}", target["expr"], metrics, recorded)
            shown = set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
            assert shown <= labels, f"{title}: missing labels {shown - labels}"
            queries += 1
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["query"]).groups()
            assert label in metrics[base(metric)] | EVERYWHERE, f"${variable['name']}"
    return queries


def main() -> None:
    metrics = known()
    groups = yaml.safe_load((PROMETHEUS / "rules/tokentap.yml").read_text())["groups"]
    rules = [rule for group in groups for rule in group["rules"]]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    for rule in rules:
        check_query(rule.get("record") or rule["alert"], rule["expr"], metrics, recorded)

    tests = yaml.safe_load((PROMETHEUS / "tests/tokentap.yml").read_text())["tests"]
    alerts = {rule["alert"] for rule in rules if "alert" in rule}
    shown = {(case["alertname"], bool(case["exp_alerts"])) for test in tests for case in test["alert_rule_test"]}
    both = {(alert, fires) for alert in alerts for fires in (True, False)}
    assert shown == both, f"each alert is tested, firing and silent: {shown ^ both}"

    queries = check_dashboard(metrics, recorded)
    print(f"queries: {len(recorded)} recorded, {len(alerts)} alerts tested both ways, {queries} of the dashboard")


if __name__ == "__main__":
    main()
