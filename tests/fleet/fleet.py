"""Runs histories: a topology, three tokentaps, clients and a seeded list of faults; then the checks."""

import argparse
import asyncio
import collections
import pathlib
import random
import re
import sys
import time

from checker import Checker
from faults import Faults, faults_of
from processes import Tokentap
from topologies import TOPOLOGIES, Topology
from workload import Workload

CI = ["kill_tokentap", "restart_primary"]


async def history(options, kind, seed, planned=None):
    """One history. Returns its violations, or `None` if the binary does not know the topology."""
    dice = random.Random(f"{kind} {seed}")
    work = pathlib.Path(options.work) / f"{kind}-{seed}"
    work.mkdir()
    topology, tokentaps, relays = Topology(kind, work), [], []
    workload = Workload(tokentaps, seed)
    running = None
    try:
        await topology.start()
        for number in range(3):
            flags, relay = await topology.flags()
            relays += [relay] if relay else []
            tokentaps.append(Tokentap(f"tokentap-{number}", work, options.tokentap, flags))
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
            for entry in faults.disturbances:
                entry[3] = entry[3] or time.monotonic()
        workload.is_over = True
        await running
        checker = Checker(workload, faults)
        if stuck:
            checker.violation(stuck)
        await checker.check()
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


def report(kind, seed, workload, faults, checker):
    """Prints the table of a history."""
    print(f"{kind}, seed {seed}: {len(workload.calls)} turns, {len(workload.reads)} reads")
    print("  outcomes: " + ", ".join(f"{name} {count}" for name, count in sorted(workload.outcomes.items())))
    detached = collections.Counter()
    for (name, begin, end, again), (_, count) in zip(faults.disturbances, faults.detached):
        detached[name] += count
        print(f"  {name:18} lasted {end - begin:5.1f} s, ledger again after {again - end:5.1f} s, {count:+.0f} detached turns")
    for cause, count in checker.lost.items():
        print(f"  lost: {count} turns, {cause}")
    # at most three of a kind; kinds differ in more than numbers
    shown = collections.Counter()
    for text in checker.violations:
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
    parser.add_argument("--ci", action="store_true")
    options = parser.parse_args()
    if options.ci:
        sys.exit(1 if asyncio.run(history(options, "single", 0, CI)) else 0)
    first, _, last = options.seeds.partition("-")
    failed = []
    for kind in options.topologies.split(","):
        if kind not in TOPOLOGIES:
            sys.exit(f"no such topology: {kind}")
        for seed in range(int(first), int(last or first) + 1):
            try:
                violations = asyncio.run(history(options, kind, seed))
            except (RuntimeError, TimeoutError) as error:
                print(f"{kind}, seed {seed}: not run to its end: {str(error)[-600:]}")
                violations = ["not run"]
            if violations:
                failed.append(f"{kind} {seed}")
    print(f"violations in: {', '.join(failed)}" if failed else "no violations")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
