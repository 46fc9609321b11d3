"""Asks a Prometheus until every target is up, every rule is evaluated and every query has data; says which has none, and why."""

import argparse
import json
import math
import time
import urllib.parse
import urllib.request
from pathlib import Path

# Queries and recording rules that a demo on a CPU leaves empty, by a metric that only they name. One that has data after all is an error: this list is true.
EMPTY = {
    "tokentap_exact_lost_total": "needs an engine with the plugin that fails",
    "tokentap_logprob_anomalies_total": "needs an engine that sends rows which are no distribution",
    "tokentap_uncaptured_generations_total": "the demo engine answers no chat",
    "tokentap_upstream_errors_total": "the demo engine does not fail",
    "outcome:tokentap_turns_quarantined:ratio15m": "the demo engine's replies fit together",
    "tokentap_cuda_crossover_rows": "needs a GPU",
    "tokentap_slice_fallbacks_total": "needs a GPU",
    "tokentap_cuda_errors_total": "needs a GPU",
}
# four scrapes, which is what Grafana makes of prometheus.yml's interval
VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$namespace": ".*", "$instance": ".*"}
PATIENCE = 200

parser = argparse.ArgumentParser()
parser.add_argument("--prometheus", required=True)
parser.add_argument("--dashboard", type=Path, required=True)
args = parser.parse_args()


def get(path: str, **query: str) -> dict:
    with urllib.request.urlopen(
        f"http://{args.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}", timeout=30
    ) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success", answer
    return answer["data"]


def has_data(expr: str) -> bool:
    values = [float(series["value"][1]) for series in get("query", query=expr)["result"]]
    return any(math.isfinite(value) for value in values)


def dashboard() -> dict[str, str]:
    """Queries by panel."""
    found = {}
    for panel in json.loads(args.dashboard.read_text())["panels"]:
        for target in panel.get("targets", []):
            expr = target["expr"]
            for variable, value in VARIABLES.items():
                expr = expr.replace(variable, value)
            found[f"{panel['title']}, {target['refId']}"] = expr
    return found


def reason(expr: str) -> str | None:
    return next((why for metric, why in EMPTY.items() if metric in expr), None)


def recording() -> list[str]:
    return [rule["name"] for group in get("rules")["groups"] for rule in group["rules"] if rule["type"] == "recording"]


def problems(queries: dict[str, str]) -> list[str]:
    found = []
    targets = get("targets")["activeTargets"]
    jobs = {target["labels"]["job"]: target["health"] for target in targets}
    if jobs != {"tokentap": "up", "sglang": "up"}:
        found.append(f"targets: {[(target['scrapeUrl'], target['health'], target['lastError']) for target in targets]}")
    rules = [rule for group in get("rules")["groups"] for rule in group["rules"]]
    assert rules, "no rules are loaded"
    found += [
        f"rule {rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in rules if rule["health"] != "ok"
    ]
    found += [
        f"{name} has no data: {expr}" for name, expr in queries.items() if not reason(expr) and not has_data(expr)
    ]
    return found


queries = dashboard() | {f"rule {name}": name for name in recording()}
assert len(queries) > 70, f"{len(queries)} queries are too few"
began = time.monotonic()
while left := problems(queries):
    if time.monotonic() - began > PATIENCE:
        raise SystemExit("\n".join(left))
    time.sleep(3)
for name, expr in queries.items():
    if why := reason(expr):
        assert not has_data(expr), f"{name} has data: take it out of the list of those that have none"
        print(f"no data: {name}: {why}")
unused = [metric for metric in EMPTY if not any(metric in expr for expr in queries.values())]
assert not unused, f"no query names {unused}"

rules = [rule for group in get("rules")["groups"] for rule in group["rules"]]
alerting = sorted(
    {f"{rule['name']} {rule['state']}" for rule in rules if rule["type"] == "alerting" and rule["state"] != "inactive"}
)
series = get("query", query='count({job="tokentap"})')["result"][0]["value"][1]
recorded = [name for name in queries if name.startswith("rule ")]
empty = {name for name, expr in queries.items() if reason(expr)}
print(
    f"after {time.monotonic() - began:.0f} s both targets are up, {series} series of tokentap, all {len(rules)} rules evaluated;"
)
print(f"data from {len(recorded) - len(empty & set(recorded))} of {len(recorded)} recording rules", end=" ")
print(
    f"and {len(queries) - len(recorded) - len(empty - set(recorded))} of {len(queries) - len(recorded)} queries of the dashboard"
)
print(f"alerts of this load: {', '.join(alerting) or 'none'}")
