#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What compatibility.py and common.sh refuse to record, in a repository with three commits: a product, a test of its package, and docs."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from compatibility import refusal

HERE = pathlib.Path(__file__).resolve().parent
VALKEY = {"component": "Valkey", "command": "bash tests/fleet/run.sh", "version": "9.1.2", "date": "2026-11-28", "result": "passed"}


class Repository(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name) / "repository"
        for name in ("compatibility.py", "common.sh", "clients/components.py"):
            self.write(f"tests/{name}", (HERE / name).read_text())
        self.write("tests/compatibility.json", "[]")
        self.git("init", "--quiet")
        self.product = self.commit("src/main.rs", "fn main() {}")
        self.commit("python/tokentap/tests/test_plot.py", "")
        self.commit("docs/compatibility.md", "")

    def write(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def git(self, *arguments):
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost", "-c", "commit.gpgsign=false"]
        command = ["git", "-C", self.root, *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    def commit(self, name, text):
        self.write(name, text)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--message", name)
        return self.git("log", "-1", "--format=%h", "--abbrev=8")

    def record(self, before="true", **variables):
        """Runs a script that does something and then records a passed run; returns its stderr."""
        script = f"set -euo pipefail; source {self.root}/tests/common.sh; {before}; record_passed Valkey 9.1.2 'bash tests/fleet/run.sh'"
        environment = {name: value for name, value in os.environ.items() if name != "TESTED_REVISION"}
        environment |= {"PYTHONDONTWRITEBYTECODE": "1", "RECORD_PASSED": "1"} | variables
        return subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment).stderr

    def records(self):
        return json.loads((self.root / "tests/compatibility.json").read_text())

    def check(self, *records):
        """The errors of compatibility.py with these records."""
        self.write("tests/compatibility.json", json.dumps(records))
        program = [sys.executable, "-B", self.root / "tests/compatibility.py"]
        subprocess.run([*program, "--write"], check=True)
        result = subprocess.run(program, capture_output=True, text=True)
        return result.stderr if result.returncode else ""


class Recording(Repository):
    def test_last_change_of_the_product_is_recorded(self):
        self.record()
        self.assertEqual([one["tokentap"] for one in self.records()], [self.product])

    def test_uncommitted_change_is_marked(self):
        self.write("docker-compose.yml", "")
        self.record()
        self.assertEqual([one["tokentap"] for one in self.records()], [self.product + "+"])

    def test_change_during_the_run_is_refused(self):
        errors = self.record(f"echo >>{self.root}/src/main.rs")
        self.assertIn(f"tokentap was {self.product} when the run began, and is {self.product}+ now", errors)
        self.assertEqual(self.records(), [])

    def test_make_names_the_revision_before_the_build(self):
        self.assertIn("tokentap was 01234567 when the run began", self.record(TESTED_REVISION="01234567"))

    def test_output_that_is_no_version_is_refused(self):
        for version in ("Error: exit 127", "exit 127", "", "9.1.2 | x", "bash: line 1: helm: not found"):
            self.assertIn("reported no version", refusal("Valkey", version, "bash tests/fleet/run.sh") or "", version)
        for version in ("v4.3.1", "252", "0.0.1a15", "Client 1.37.1 Kustomize 5.8.1", "read with torch 2.11.0", "2.6.12-1+deb12u1", "0123456789ab"):
            self.assertIsNone(refusal("Valkey", version, "bash tests/fleet/run.sh"), version)

    def test_other_settings_and_arguments_are_not_recorded(self):
        self.assertIn(" SEEDS=1", self.record('record_default "" T SEEDS', SEEDS="1"))
        self.assertIn("--estimator egpo", self.record('record_default "--estimator egpo" SEEDS'))
        self.assertEqual(self.records(), [])
        # make passes empty variables
        self.record('record_default "" SEEDS T', SEEDS="")
        self.assertEqual(len(self.records()), 1)


class Checking(Repository):
    def test_record_of_an_unknown_run(self):
        self.assertIn("RUNS of tests/compatibility.py has no Redis", self.check(VALKEY | {"component": "Redis"}))

    def test_two_records_of_a_run(self):
        self.assertIn("two records of Valkey", self.check(VALKEY, VALKEY))

    def test_commit_outside_the_history(self):
        self.assertIn("01234567 is not in the history", self.check(VALKEY | {"tokentap": "01234567+"}))

    def test_commit_that_changes_only_tests(self):
        commit = self.git("log", "-1", "--format=%h", "--abbrev=8", "--", "python")
        self.assertIn(f"the last commit that does is {self.product}", self.check(VALKEY | {"tokentap": commit}))
        self.assertEqual(self.check(VALKEY | {"tokentap": self.product}), "")

    def test_commits_are_not_checked_in_a_shallow_clone(self):
        clone = self.root.with_name("clone")
        self.git("clone", "--quiet", "--depth", "1", f"file://{self.root}", str(clone))
        shutil.rmtree(self.root / ".git")
        shutil.move(clone / ".git", self.root)
        self.assertEqual(self.check(VALKEY | {"tokentap": "01234567"}), "")


if __name__ == "__main__":
    unittest.main()
