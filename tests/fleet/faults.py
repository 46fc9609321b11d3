# SPDX-License-Identifier: Apache-2.0
"""Faults of a history. Each fault ends by itself; the history notes when it began and when all tokentaps used the ledger again."""

import asyncio
import dataclasses
import time

from processes import until

COMMON = ["kill_tokentap", "pause_tokentap", "roll_tokentaps", "pause_primary", "restart_primary", "out_of_memory", "client_pause"]
RELAYED = ["cut_connections", "hold_connections"]
NETWORK = ["isolate_primary", "split_network", "isolate_tokentap", "lag_and_fail_over", "lose_node"]
# they remove entries that were confirmed
LOSSY = {"flush", "restart_empty", "promote_by_hand"}
# they can remove entries that the primary had and replicas had not
SWITCHING = {"fail_over", "lag_and_fail_over", "lose_node", "isolate_primary", "split_network", "restart_primary", "pause_primary", "client_pause"}


def faults_of(topology):
    """The names of the faults that a topology can have."""
    names = list(COMMON)
    if topology.has_relays:
        names += RELAYED
    if topology.kind in ("single", "tls"):
        names += ["flush", "restart_empty"]
    if topology.kind == "replica":
        names += ["pause_replica", "flush"]
    if topology.kind in ("sentinel", "cluster"):
        names += ["pause_replica", "fail_over"]
        if topology.network:
            names += NETWORK
    if topology.kind == "sentinel":
        names += ["kill_sentinel"]
    return names


@dataclasses.dataclass
class Disturbance:
    """A fault, and the counts of the tokentaps before it and after it."""

    fault: str
    begin: float
    before: dict
    end: float = None
    # when all tokentaps used the ledger
    again: float = None
    after: dict = None

    def rise(self, name):
        """By how much a counter of all tokentaps rose."""
        return int((self.after or self.before).get(name, 0) - self.before.get(name, 0))


@dataclasses.dataclass
class Death:
    """The end of a process of tokentap. At most `detached` of its turns were not in the ledger."""

    at: float
    detached: int


class Faults:
    """Injects faults, and keeps the disturbances and the ends of processes."""

    def __init__(self, topology, tokentaps, relays, workload, random):
        self.topology, self.tokentaps, self.relays, self.workload, self.random = topology, tokentaps, relays, workload, random
        self.began = time.monotonic()
        self.disturbances, self.deaths, self.latest = [], {}, {}

    async def inject(self, name):
        entry = Disturbance(name, time.monotonic(), await self.totals())
        self.disturbances.append(entry)
        try:
            await getattr(self, name)()
        finally:
            entry.end = entry.again = time.monotonic()
        try:
            await until(f"all tokentaps use the ledger again after {name}", self.is_settled, 60)
        except TimeoutError:
            if not await self.topology.promote():
                raise
            self.disturbances.append(Disturbance("promote_by_hand", entry.begin, entry.before))
            await until("all tokentaps use the ledger that was promoted by hand", self.is_settled, 60)
            self.disturbances[-1].end = self.disturbances[-1].again = time.monotonic()
        entry.again = time.monotonic()

    async def totals(self):
        """The counters of all processes so far, those that have ended included."""
        for one in self.tokentaps:
            if one.is_usable and not one.is_stopped:
                self.latest[one.log.name] = await self.workload.counts(one)
        totals = {}
        for counts in self.latest.values():
            for name, count in counts.items():
                totals[name] = totals.get(name, 0) + count
        return totals

    async def is_settled(self):
        counts = [await self.workload.counts(one) for one in self.tokentaps]
        return all(count["down"] == 0 for count in counts)

    async def note_ends(self):
        """What happened between a fault and the next one is counted for the first."""
        now = await self.totals()
        for entry, following in zip(self.disturbances, self.disturbances[1:]):
            entry.after = following.before
        if self.disturbances:
            self.disturbances[-1].after = now

    async def note_end_of_checks(self):
        """The last fault also has what the checks waited for."""
        if self.disturbances:
            self.disturbances[-1].after = await self.totals()

    async def note_death(self, tokentap):
        count = self.latest[tokentap.log.name] = await self.workload.counts(tokentap)
        self.deaths[tokentap.log.name] = Death(time.monotonic(), count["turns_detached_total"] - count["turns_joined_total"])

    async def kill_tokentap(self):
        tokentap = self.random.choice(self.tokentaps)
        await self.note_death(tokentap)
        tokentap.kill()
        await asyncio.sleep(self.random.random() * 2)
        await tokentap.start()

    async def pause_tokentap(self):
        tokentap = self.random.choice(self.tokentaps)
        tokentap.stop()
        await asyncio.sleep(self.random.uniform(3, 8))
        tokentap.go_on()

    async def roll_tokentaps(self):
        for tokentap in self.tokentaps:
            await self.note_death(tokentap)
            await tokentap.end()
            await tokentap.start()

    async def pause_primary(self):
        primary = await self.topology.primary()
        primary.stop()
        await asyncio.sleep(self.random.uniform(1, 5))
        primary.go_on()

    async def restart_primary(self):
        primary = await self.topology.primary()
        primary.kill()
        await asyncio.sleep(self.random.random() * 2)
        await primary.start()

    async def restart_empty(self):
        primary = await self.topology.primary()
        primary.kill()
        primary.forget()
        await primary.start()

    async def fail_over(self):
        primary = await self.topology.primary()
        primary.kill()
        await asyncio.sleep(10)
        await primary.start()

    async def flush(self):
        await (await self.topology.primary()).ask("FLUSHALL")

    async def out_of_memory(self):
        primary = await self.topology.primary()
        await primary.ask("CONFIG", "SET", "maxmemory", 1)
        await asyncio.sleep(3)
        await primary.ask("CONFIG", "SET", "maxmemory", 0)

    async def client_pause(self):
        await (await self.topology.primary()).ask("CLIENT", "PAUSE", 3000, "ALL")
        await asyncio.sleep(3)

    async def pause_replica(self):
        replica = await self.topology.replica()
        if replica is not None:
            replica.stop()
            await asyncio.sleep(self.random.uniform(3, 6))
            replica.go_on()

    async def kill_sentinel(self):
        sentinel = self.random.choice(self.topology.sentinels)
        sentinel.kill()
        await asyncio.sleep(2)
        await sentinel.start()

    async def cut_connections(self):
        relay = self.random.choice(self.relays)
        relay.cut()
        await asyncio.sleep(self.random.uniform(2, 6))
        relay.open()

    async def hold_connections(self):
        relay = self.random.choice(self.relays)
        relay.hold()
        await asyncio.sleep(self.random.uniform(3, 6))
        relay.open()

    async def isolate_primary(self):
        """The primary reaches nothing, and nothing reaches it."""
        primary = await self.topology.primary()
        self.topology.network.isolate([primary.node])
        await asyncio.sleep(self.random.uniform(3, 10))
        self.topology.network.heal()

    async def split_network(self):
        """The primary, one tokentap and one Sentinel are on one side, everything else is on the other."""
        minority = [await self.topology.primary(), self.random.choice(self.tokentaps), *self.topology.sentinels[:1]]
        self.topology.network.isolate([process.node for process in minority])
        await asyncio.sleep(self.random.uniform(3, 10))
        self.topology.network.heal()

    async def isolate_tokentap(self):
        """A tokentap reaches clients and its engine only."""
        tokentap = self.random.choice(self.tokentaps)
        self.topology.network.isolate([tokentap.node])
        await asyncio.sleep(self.random.uniform(3, 10))
        self.topology.network.heal()

    async def lose_node(self):
        """A primary and a tokentap end together, after replicas lagged and detached turns were appended. The tokentap starts again."""
        primary, tokentap = await self.topology.primary(), self.random.choice(self.tokentaps)
        replicas = await self.topology.replicas_of(primary)
        self.topology.network.cut([primary.node], [replica.node for replica in replicas])
        await primary.ask("CLIENT", "PAUSE", 2500, "ALL")
        await asyncio.sleep(5)
        await self.note_death(tokentap)
        primary.kill()
        tokentap.kill()
        self.topology.network.heal()
        await asyncio.sleep(10)
        await primary.start()
        await tokentap.start()

    async def lag_and_fail_over(self):
        """A replica that lacks the latest entries becomes the primary."""
        primary = await self.topology.primary()
        replicas = await self.topology.replicas_of(primary)
        self.topology.network.cut([primary.node], [replica.node for replica in replicas])
        await asyncio.sleep(self.random.uniform(2, 4))
        primary.kill()
        self.topology.network.heal()
        await asyncio.sleep(10)
        await primary.start()
