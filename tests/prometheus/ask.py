# SPDX-License-Identifier: Apache-2.0
"""Polls a Prometheus until all targets are up, all rules are evaluated and all queries have data, except those listed in EMPTY."""

import argparse
import json
import math
import time
import urllib.parse
import urllib.request
from pathlib import Path

# Reasons why queries and recording rules are empty with a demo on a CPU, by a metric in them. If such a query has data, that is an
# error, so that this list stays correct.
EMPTY = {
    "tokentap_exact_lost_total": "needs an engine with the plugin that fails",
    "tokentap_logprob_anomalies_total": "needs an engine that sends rows which are no distribution",
    "tokentap_cuda_crossover_rows": "needs a GPU",
    "tokentap_slice_fallbacks_total": "needs a GPU",
    "tokentap_cuda_errors_total": "needs a GPU",
    "tokentap_ledger_append_seconds": "needs a Valkey",
    "tokentap_ledger_behind:ratio10m": "needs a Valkey",
}
# four scrapes, as Grafana derives it from the interval of prometheus.yml
VARIABLES = {"$__rate_interval": "1m", "$model": ".*", "$namespace": ".*", "$instance": ".*"}
PATIENCE = 200

parser = argparse.ArgumentParser()
parser.add_argument("--prometheus", required=True)
parser.add_argument("--dashboard", type=Path, required=True)
args = parser.parse_args()


def get(path: str, **query: str) -> dict:
    url = f"http://{args.prometheus}/api/v1/{path}?{urllib.parse.urlencode(query)}"
    with urllib.request.urlopen(url, timeout=30) as reply:
        answer = json.load(reply)
    assert answer["status"] == "success", answer
    return answer["data"]


def numbers(expr: str) -> list[float]:
    values = [float(series["value"][1]) for series in get("query", query=expr)["result"]]
    return [value for value in values if math.isfinite(value)]


def has_data(expr: str) -> bool:
    return bool(numbers(expr))


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


def rules() -> list[dict]:
    return [rule for group in get("rules")["groups"] for rule in group["rules"]]


def problems(queries: dict[str, str]) -> list[str]:
    found = []
    targets = get("targets")["activeTargets"]
    jobs = sorted((target["labels"]["job"], target["health"]) for target in targets)
    if jobs != [("sglang", "up"), ("tokentap", "up"), ("tokentap", "up")]:
        found.append(f"targets: {[(target['scrapeUrl'], target['health'], target['lastError']) for target in targets]}")
    failing = [rule for rule in rules() if rule["health"] != "ok"]
    found += [f"rule {rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in failing]
    empty = {name: expr for name, expr in queries.items() if not reason(expr) and not has_data(expr)}
    found += [f"{name} has no data: {expr}" for name, expr in empty.items()]
    return found


panels = dashboard()
records = {f"rule {rule['name']}": rule["name"] for rule in rules() if rule["type"] == "recording"}
assert len(panels) > 50, f"{len(panels)} queries are too few"
assert len(records) > 5, f"{len(records)} recording rules are too few"
queries = panels | records
began = time.monotonic()
while left := problems(queries):
    if time.monotonic() - began > PATIENCE:
        raise SystemExit("\n".join(left))
    time.sleep(3)
for name, expr in queries.items():
    if why := reason(expr):
        assert not has_data(expr), f"{name} has data: remove its metric from EMPTY"
        print(f"no data: {name}: {why}")
# counters start at 0, so a query may have data although nothing happened
zeros = [name for name, expr in queries.items() if not reason(expr) and not any(numbers(expr))]
unused = [metric for metric in EMPTY if not any(metric in expr for expr in queries.values())]
assert not unused, f"no query names {unused}"

states = [(rule["name"], rule["state"]) for rule in rules() if rule["type"] == "alerting"]
alerts = sorted(f"{name} {state}" for name, state in states if state != "inactive")
series = get("query", query='count({job="tokentap"})')["result"][0]["value"][1]
took = time.monotonic() - began
print(f"after {took:.0f} s: all targets up, {series} series of tokentap, {len(rules())} rules evaluated")
for kind, of_kind in (("recording rules", records), ("queries of the dashboard", panels)):
    print(f"data from {sum(not reason(expr) for expr in of_kind.values())} of {len(of_kind)} {kind}")
print(f"only zeros: {'; '.join(zeros) or 'none'}")
print(f"alerts of this load: {', '.join(alerts) or 'none'}")
