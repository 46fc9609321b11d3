#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The last passed runs with third-party software: tests/compatibility.json, and the page docs/compatibility.md that is generated from it.

compatibility.py                                      checks the records, and compares the page with them
compatibility.py --write                              writes the page
compatibility.py --revision                           prints the last commit that changed tokentap itself, with "+" if files are changed
compatibility.py --passed COMPONENT VERSION COMMAND   with RECORD_PASSED=1, as make sets it: replaces the record, and writes the page

A record has the version that the component reported, the day in UTC, and the revision. Scripts call record_passed of common.sh at their end.
TESTED_REVISION is the revision at the beginning, which make sets before it builds, and common.sh without make: nothing is recorded if
tokentap has changed since.
"""

import collections
import datetime
import fcntl
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
RECORDS, PAGE = HERE / "compatibility.json", ROOT / "docs/compatibility.md"
# what tokentap is made of; a commit to tests or docs does not change what was tested
PRODUCT = ["src", "cuda", "proto", "python", "deploy", "Cargo.toml", "Cargo.lock", "docker-compose.yml", "pyproject.toml",
           ":!*.md", ":!python/*/tests/*", ":!deploy/check*"]
# numbers with dots, perhaps after words, as programs print them; otherwise one number, or a commit
VERSION = re.compile(r"(([A-Za-z][\w-]* )*v?\d+(\.\d+)+[\w.+~-]*( (?!$)|$))+|\d+|[0-9a-f]{12}")

# only for this import: programs that import this module have other modules of the same names
sys.path.insert(0, str(HERE / "clients"))
from components import COMPONENTS as CLIENTS  # noqa: E402

sys.path.pop(0)

SGLANG = ["0.5.23", "0.5.23-smollm2", "0.5.23-incremental", "0.5.23-original", "0.5.12", "0.5.12-smollm2", "0.5.6", "0.5.6-stream-output"]
EXACT = ["numerics", "overlap", "incremental", "no-overlap", "retraction", "retraction-no-overlap", "grammar", "intervals", "cost"]
VISION = [family + mode for family in ("qwen3_vl", "qwen2_5_vl") for mode in ("", "-incremental", "-chats")]
READERS = ["verl", "miles", "slime", "AReaL", "tunix", "strands-sglang", "rllm-model-gateway", "skyrl", "NeMo-RL", "prime-rl", "trl", "tinker",
           "pyarrow", "datasets", "polars", "duckdb"]

# every (component, command) that a script records, in the order of the page
RUNS = {
    "Engines": [
        *(("SGLang", f"bash tests/real/run.sh {mode}") for mode in SGLANG),
        ("SGLang", "bash tests/real/dialects.sh"),
        ("SGLang", "bash tests/real/policies.sh"),
        ("SGLang", "bash tests/real/moe/run.sh"),
        ("SGLang", "bash tests/real/teacher/run.sh"),
        ("SGLang", "bash tests/real/logprobs.sh"),
        ("SGLang", "make real-calls"),
        *(("SGLang", f"bash tests/real/exact/run.sh {mode}") for mode in EXACT),
        *(("SGLang", f"bash tests/real/vision/run.sh {mode}") for mode in VISION),
        ("sglang-jax", "bash tests/jax/run.sh SRC"),
        ("sglang-router", "bash tests/router/run.sh"),
        ("transformers", "bash tests/templates/run.sh"),
    ],
    "Trainers": [
        ("verl", "bash tests/trainers/run.sh verl"),
        ("TransferQueue", "bash tests/trainers/run.sh verl"),
        ("tunix", "bash tests/trainers/run.sh tunix"),
        ("strands-sglang", "bash tests/trainers/run.sh strands"),
        ("verl", "bash tests/trainers/run.sh --real verl"),
        ("tunix", "bash tests/trainers/run.sh --real tunix"),
        ("strands-sglang", "bash tests/trainers/run.sh --real strands"),
        ("SGLang", "bash tests/train/run.sh"),
        ("SGLang", "AGENT=sdk bash tests/train/run.sh"),
        ("strands-agents", "AGENT=strands bash tests/train/run.sh"),
        ("tunix", "bash tests/train/tunix/run.sh"),
        ("verl", "bash tests/train/verl/run.sh"),
    ],
    "Exports": [(component, "bash tests/readers/run.sh") for component in READERS],
    "Agents": [(component.name, "bash tests/clients/run.sh agents") for component in CLIENTS if component.group == "agents"],
    "SDKs and frameworks": [
        ("openai (Python)", "bash tests/openai/run.sh"),
        ("grpcio", "bash tests/grpc/run.sh"),
        ("openapi-spec-validator", "bash .ci/python"),
        ("openapi-python-client", "bash tests/openapi/run.sh"),
        ("@hey-api/openapi-ts", "bash tests/openapi/run.sh"),
        *((component.name, "bash tests/clients/run.sh libraries") for component in CLIENTS if component.group == "libraries"),
    ],
    "Trackers": [(component, "bash tests/trackers/run.sh") for component in ("wandb", "mlflow", "tensorboard")],
    "Shared sessions and archives": [
        ("Valkey", "bash tests/fleet/run.sh ci"),
        ("Valkey", "bash tests/fleet/run.sh"),
        ("Valkey", "bash tests/compose/run.sh"),
        ("HAProxy", "bash tests/compose/run.sh"),
        ("moto (S3)", "bash tests/archive/run.sh short"),
        ("moto (S3)", "bash tests/archive/run.sh"),
        ("s3s-fs (S3)", "bash tests/archive/run.sh"),
    ],
    "Operation": [
        ("Prometheus", "bash tests/prometheus/run.sh"),
        ("Prometheus", "bash deploy/check.sh"),
        ("Rotel (OpenTelemetry)", "bash tests/otlp/run.sh"),
        ("kubectl (kustomize)", "bash deploy/check.sh"),
        ("kubernetes-validate (schemas)", "bash deploy/check.sh"),
        ("Helm", "bash deploy/check.sh"),
        ("systemd", "bash tests/systemd/run.sh"),
        ("Slurm", "bash tests/cluster/run.sh slurm"),
        ("Ray", "bash tests/cluster/run.sh ray"),
    ],
}
INTRODUCTION = """\
<!-- Generated by `python3 tests/compatibility.py --write` from tests/compatibility.json; edit the script instead. -->

# Compatibility

This page lists the tests that run tokentap with third-party software, and the last recorded run of each that passed.

- *version* is what the component itself reported in that run, or the package that read its format (*read with*). Other versions may work, but are
  not tested.
- *tokentap* is the last commit that changed tokentap before the run, with `+` if there were uncommitted changes.
- *command* is the test. The head of each script lists its settings, and runs with other settings are not recorded. The command needs a build (`cargo build`
  or `cargo build --release`). `make` lists targets that build and run most of the tests, with what each proves.
- A test that passes is recorded with `RECORD_PASSED=1`, which every `make` target except `check` sets. One that fails is not, so a later run than
  the recorded one may have failed.
- *not recorded yet*: no run has been recorded since this page exists.

Tests in which third-party software is a tool or the object of a comparison have no rows, such as Chromium (`make page`), conformance suites of
llama.cpp, SGLang and Open Responses (`make suites`), nginx and HAProxy (`make wire`), load generators (`make load`), and two builds of tokentap on
one Valkey (`make upgrade`).
"""


def git(*arguments: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True).stdout.strip()


def revision() -> str:
    """Empty outside a checkout."""
    try:
        commit = git("log", "-1", "--format=%h", "--abbrev=8", "--", *PRODUCT)
        return commit + "+" * bool(git("status", "--porcelain", "--", *PRODUCT)) if commit else ""
    except (OSError, subprocess.CalledProcessError):
        return ""


def complete_history() -> bool:
    try:
        return git("rev-parse", "--is-shallow-repository") == "false"
    except (OSError, subprocess.CalledProcessError):
        return False


def wrong_commit(commit: str) -> "str | None":
    """Why a run cannot have tested this commit."""
    try:
        git("merge-base", "--is-ancestor", commit, "HEAD")
    except subprocess.CalledProcessError:
        return f"{commit} is not in the history"
    last = git("log", "-1", "--format=%h", "--abbrev=8", commit, "--", *PRODUCT)
    return None if commit == last else f"{commit} does not change tokentap; the last commit that does is {last}"


def records() -> list[dict[str, str]]:
    return json.loads(RECORDS.read_text())


def replace(path: pathlib.Path, text: str) -> None:
    """Scripts that run side by side read whole files."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.write_text(text)
    beside.replace(path)


def row(component: str, command: str, found: "dict[str, str] | None") -> str:
    if found is None:
        return f"| {component} | | not recorded yet | | | `{command}` |"
    return f"| {component} | {found['version']} | {found['result']} | {found['date']} | {found.get('tokentap', '')} | `{command}` |"


def page(found: list[dict[str, str]]) -> str:
    text, by_run = INTRODUCTION, {(one["component"], one["command"]): one for one in found}
    for title, runs in RUNS.items():
        text += f"\n## {title}\n\n| component | version | result | date | tokentap | command |\n|---|---|---|---|---|---|\n"
        text += "".join(row(*run, by_run.get(run)) + "\n" for run in runs)
    return text


def refusal(component: str, version: str, command: str) -> "str | None":
    """Why the page cannot have this run."""
    if (component, command) not in [run for runs in RUNS.values() for run in runs]:
        return f"RUNS of tests/compatibility.py has no {component}, {command}"
    if not VERSION.fullmatch(version):
        return f"{component} reported no version: {version!r}"
    return None


def check(found: list[dict[str, str]]) -> None:
    wrong = [why for one in found if (why := refusal(one["component"], one["version"], one["command"]))]
    twice = collections.Counter((one["component"], one["command"]) for one in found)
    wrong += [f"two records of {component}, {command}" for (component, command), count in twice.items() if count > 1]
    if complete_history():
        commits = sorted({one["tokentap"].rstrip("+") for one in found if "tokentap" in one})
        wrong += [f"tests/compatibility.json: {why}" for commit in commits if (why := wrong_commit(commit))]
    else:
        print("compatibility: without the whole history, the commits are not checked", file=sys.stderr)
    if wrong:
        sys.exit("\n".join(wrong))


def record_passed(component: str, version: str, command: str) -> None:
    """Records that this command has just passed. Without RECORD_PASSED=1 only checks the arguments."""
    if why := refusal(component, version, command):
        sys.exit(why)
    if os.environ.get("RECORD_PASSED") != "1":
        return
    begun, at = os.environ.get("TESTED_REVISION"), revision()
    if begun is None:
        sys.exit(f"{component} is not recorded: TESTED_REVISION is not set; make and tests/common.sh set it")
    if begun != at:
        # the run has passed, and its script may have more to record
        print(f"{component} is not recorded: tokentap was {begun} when the run began, and is {at} now", file=sys.stderr)
        return
    today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    new = {"component": component, "command": command, "version": version, "date": today, "result": "passed"}
    if at:
        new["tokentap"] = at
    with open(__file__) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = [one for one in records() if (one["component"], one["command"]) != (component, command)]
        kept = sorted([*kept, new], key=lambda one: (one["component"].lower(), one["command"]))
        replace(RECORDS, json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
        replace(PAGE, page(kept))
    print(f"recorded: {component} {version}, {command}", file=sys.stderr)


def main() -> None:
    match sys.argv[1:]:
        case ["--passed", component, version, command]:
            record_passed(component, version, command)
        case ["--revision"]:
            print(revision())
        case ["--write"]:
            replace(PAGE, page(records()))
        case []:
            check(records())
            if PAGE.read_text() != page(records()):
                sys.exit("docs/compatibility.md is out of date: python3 tests/compatibility.py --write")
            print(f"compatibility: {len(records())} of {sum(map(len, RUNS.values()))} runs are recorded")
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
