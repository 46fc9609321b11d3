# SPDX-License-Identifier: Apache-2.0
"""Runs histories: a topology, three tokentaps, clients and a seeded list of faults; then the checks."""

import argparse
import asyncio
import collections
import pathlib
import random
import re
import sys
import time

import aiohttp

from archives import Bucket, Folder
from checker import Checker
from faults import Faults, faults_of
from network import Network
from processes import Tokentap
from topologies import TOPOLOGIES, Topology
from workload import Workload

CI = ["kill_tokentap", "restart_primary"]


def extra_flags(number, work):
    """One tokentap loses what is detached when it ends, one writes it to a log, and one refuses it."""
    return [[], ["--data-dir", work / "log"], ["--strict", "ledger"]][number]


async def history(options, kind, seed, table, planned=None):
    """One history. Returns its violations."""
    dice = random.Random(f"{kind} {seed}")
    work = pathlib.Path(options.work) / f"{kind}-{seed}"
    work.mkdir()
    # the bucket is not in the network of the nodes
    network = Network() if options.namespaces and not options.s3 else None
    archive = Bucket(seed) if options.s3 else Folder(work)
    topology, tokentaps, relays = Topology(kind, work, network), [], []
    workload = Workload(tokentaps, seed)
    running = None
    try:
        await topology.start()
        for number in range(3):
            flags, relay = await topology.flags()
            relays += [relay] if relay else []
            flags += extra_flags(number, work) + ["--archive", archive.uri, "--archive-interval", "1s"]
            tokentaps.append(Tokentap(f"tokentap-{number}", work, options.tokentap, flags, topology.node()))
            await tokentaps[-1].start()
        faults = Faults(topology, tokentaps, relays, workload, dice)
        running = asyncio.create_task(workload.run())
        begin = time.monotonic()
        await asyncio.sleep(2)
        stuck = None
        try:
            if planned:
                for name in planned:
                    await faults.inject(name)
                    await asyncio.sleep(1)
            while not planned and time.monotonic() < begin + options.seconds:
                await faults.inject(dice.choice(faults_of(topology)))
                await asyncio.sleep(1)
        except TimeoutError as error:
            stuck = str(error)
            faults.disturbances[-1].again = time.monotonic()
        workload.is_over = True
        await running
        await faults.note_ends()
        archive.end_faults()
        checker = Checker(workload, faults, archive)
        if stuck:
            checker.violation(stuck)
        await checker.check()
        await faults.note_end_of_checks()
        table.add(workload, faults, checker)
        report(kind, seed, workload, faults, checker)
        return checker.violations
    finally:
        workload.is_over = True
        if running:
            running.cancel()
        if workload.http:
            await workload.http.close()
        for one in tokentaps:
            one.kill()
        await topology.end()
        archive.end()
        if network:
            network.end()


class Table:
    """What happened in all histories, by fault."""

    COLUMNS = ["turns", "detached", "appended later", "healed", "not healed", "lost", "violations"]

    def __init__(self):
        self.faults, self.rows, self.causes = collections.Counter(), collections.defaultdict(collections.Counter), collections.Counter()

    def add(self, workload, faults, checker):
        """Adds a history. A turn belongs to the fault that was the last one to begin before its reply."""

        def fault_at(at):
            begun = [entry for entry in faults.disturbances if at is not None and entry.begin <= at]
            return begun[-1].fault if begun else "before the first fault" if at is not None else "at the end"

        for entry in faults.disturbances:
            self.faults[entry.fault] += 1
            row = self.rows[entry.fault]
            for column, name in (("detached", "turns_detached_total"), ("appended later", "turns_joined_total"), ("healed", "healed_total"),
                                 ("not healed", "unhealed_total")):  # fmt: skip
                row[column] += entry.rise(name)
        for call in workload.calls:
            self.rows[fault_at(call.ended)]["turns"] += 1
        for call, cause in checker.lost:
            self.rows[fault_at(call.ended)]["lost"] += 1
            self.causes[cause] += 1
        for at, _ in checker.violations:
            self.rows[fault_at(at)]["violations"] += 1

    def show(self):
        """Prints it."""
        print("\n| fault | times | " + " | ".join(self.COLUMNS) + " |")
        print("|---|" + "---|" * (len(self.COLUMNS) + 1))
        names = sorted(self.rows)
        for name in names:
            print(f"| {name} | {self.faults[name]} | " + " | ".join(str(self.rows[name][column]) for column in self.COLUMNS) + " |")
        sums = [sum(self.rows[name][column] for name in names) for column in self.COLUMNS]
        print(f"| all | {sum(self.faults.values())} | " + " | ".join(str(total) for total in sums) + " |")
        print("\nlost, by cause:" + ("" if self.causes else " nothing"))
        for cause, count in self.causes.most_common():
            print(f"  {count} turns: {cause}")


def report(kind, seed, workload, faults, checker):
    """Prints the table of a history."""
    print(f"{kind}, seed {seed}: {len(workload.calls)} turns, {len(workload.reads)} reads")
    print("  outcomes: " + ", ".join(f"{name} {count}" for name, count in sorted(workload.outcomes.items())))
    for entry in faults.disturbances:
        lasted, again = entry.end - entry.begin, entry.again - entry.end
        detached, joined, healed = (entry.rise(name) for name in ("turns_detached_total", "turns_joined_total", "healed_total"))
        print(f"  {entry.begin - faults.began:5.1f} s: {entry.fault:18} lasted {lasted:5.1f} s, ledger again after {again:5.1f} s, "
              f"{detached} detached, {joined} appended later, {healed} healed")  # fmt: skip
    print(f"  at the end all turns were in the ledger after {checker.appended_after:.1f} s; the archive has {checker.rows} rows")
    for cause, count in collections.Counter(cause for _, cause in checker.lost).items():
        print(f"  lost: {count} turns: {cause}")
    # at most three of a kind; kinds differ in more than numbers
    shown = collections.Counter()
    for _, text in checker.violations:
        kind = re.sub(r"\d+", "N", text)[:40]
        shown[kind] += 1
        if shown[kind] <= 3:
            print(f"  VIOLATION: {text[:900]}")
    for kind, count in shown.items():
        print(f"  {count} violations like: {kind}")
    sys.stdout.flush()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tokentap", required=True)
    parser.add_argument("--work", required=True)
    parser.add_argument("--seeds", default="1")
    parser.add_argument("--seconds", type=float, default=40)
    parser.add_argument("--topologies", default="single")
    parser.add_argument("--faults", help="these faults, in this order, instead of a seeded list")
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--s3", action="store_true", help="archive in a bucket of which 30 % of the requests fail")
    parser.add_argument("--namespaces", action="store_true", help="the process is in a network namespace for this run only")
    options = parser.parse_args()
    table = Table()
    if options.ci:
        sys.exit(1 if asyncio.run(history(options, "single", 0, table, CI)) else 0)
    planned = options.faults.split(",") if options.faults else None
    first, _, last = options.seeds.partition("-")
    failed = []
    for kind in options.topologies.split(","):
        if kind not in TOPOLOGIES:
            sys.exit(f"no such topology: {kind}")
        for seed in range(int(first), int(last or first) + 1):
            try:
                violations = asyncio.run(history(options, kind, seed, table, planned))
            except (RuntimeError, TimeoutError, OSError, aiohttp.ClientError) as error:
                print(f"{kind}, seed {seed}: not run to its end: {str(error)[-600:]}")
                violations = ["not run"]
            if violations:
                failed.append(f"{kind} {seed}")
    table.show()
    print(f"violations in: {', '.join(failed)}" if failed else "no violations")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
