"""Faults of a history. Each fault ends by itself; the history notes when it began and when all tokentaps used the ledger again."""

import asyncio
import time

from processes import until

COMMON = ["kill_tokentap", "pause_tokentap", "roll_tokentaps", "pause_primary", "restart_primary", "out_of_memory", "client_pause"]
RELAYED = ["cut_connections", "hold_connections"]
# they may lose what was acknowledged, if no process that has it is left
LOSSY = {"flush", "restart_empty", "fail_over"}


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
    if topology.kind == "sentinel":
        names += ["kill_sentinel"]
    return names


class Faults:
    """Injects faults, and keeps the disturbances: [fault, begin, end of it, ledger in use again]."""

    def __init__(self, topology, tokentaps, relays, workload, random):
        self.topology, self.tokentaps, self.relays, self.workload, self.random = topology, tokentaps, relays, workload, random
        self.disturbances, self.killed, self.detached = [], {}, []

    async def inject(self, name):
        before = await self.detached_now()
        entry = [name, time.monotonic(), None, None]
        self.disturbances.append(entry)
        await getattr(self, name)()
        entry[2] = time.monotonic()
        await until(f"all tokentaps use the ledger again after {name}", self.is_settled, 60)
        entry[3] = time.monotonic()
        self.detached.append((name, await self.detached_now() - before))

    async def detached_now(self):
        counts = [await self.workload.counts(one) for one in self.tokentaps if one.is_usable]
        return sum(count["turns_detached_total"] for count in counts)

    async def is_settled(self):
        counts = [await self.workload.counts(one) for one in self.tokentaps]
        return all(count["down"] == 0 for count in counts)

    async def kill(self, tokentap):
        """Kills a tokentap. What it had detached is lost with it, as it has no --data-dir."""
        count = await self.workload.counts(tokentap)
        self.killed[tokentap.log.name] = (time.monotonic(), count["turns_detached_total"] - count["turns_joined_total"])
        tokentap.kill()

    async def kill_tokentap(self):
        tokentap = self.random.choice(self.tokentaps)
        await self.kill(tokentap)
        await asyncio.sleep(self.random.random() * 2)
        await tokentap.start()

    async def pause_tokentap(self):
        tokentap = self.random.choice(self.tokentaps)
        tokentap.stop()
        await asyncio.sleep(self.random.uniform(3, 8))
        tokentap.go_on()

    async def roll_tokentaps(self):
        for tokentap in self.tokentaps:
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
