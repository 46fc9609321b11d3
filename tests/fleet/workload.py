# SPDX-License-Identifier: Apache-2.0
"""Clients that send each request to another tokentap of a fleet, and a log of the replies."""

import asyncio
import collections
import dataclasses
import itertools
import random
import time

import aiohttp

SESSIONS, CLIENTS = 12, 8


@dataclasses.dataclass
class Call:
    """A generation whose reply was complete."""

    rid: str
    session: str
    prompt: list
    response: list
    process: str
    ended: float


@dataclasses.dataclass
class Read:
    """The turns of a session, as one tokentap listed them."""

    session: str
    generation: int
    rids: list
    process: str
    begun: float
    ended: float


class Workload:
    """The clients. Sessions named s-* are used and frozen; sessions named d-* are also deleted."""

    def __init__(self, tokentaps, seed):
        self.tokentaps, self.random, self.http = tokentaps, random.Random(seed), None
        self.calls, self.reads, self.versions = [], [], []
        self.outcomes, self.numbers, self.is_over = collections.Counter(), itertools.count(), False
        self.done = collections.defaultdict(list)

    async def run(self):
        self.http = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=15))
        await asyncio.gather(*(self.client() for _ in range(CLIENTS)))

    async def client(self):
        while not self.is_over:
            usable = [one for one in self.tokentaps if one.is_usable]
            if not usable:
                await asyncio.sleep(0.05)
                continue
            step = self.random.choices([self.generate, self.chat, self.reward, self.freeze, self.delete, self.read], [60, 8, 6, 2, 1, 20])[0]
            try:
                outcome = await step(self.random.choice(usable))
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                outcome = type(error).__name__
            self.outcomes[f"{step.__name__} {outcome}"] += 1
            await asyncio.sleep(self.random.random() * 0.05)

    def session(self):
        number = self.random.randrange(SESSIONS)
        return f"d-{number}" if number == 0 else f"s-{number}"

    async def ask(self, method, url, body=None):
        async with self.http.request(method, url, json=body) as reply:
            data = await reply.read()
            return reply.status, data, await reply.json(content_type=None) if data[:1] == b"{" and b"\n{" not in data else None

    async def generate(self, tokentap):
        session, number = self.session(), next(self.numbers)
        # four ids that no other prompt has, so that a turn is known by its content
        unique = [300 + number // 10**place % 10 for place in (3, 2, 1, 0)]
        earlier = self.random.choice(self.done[session]) if self.done[session] and self.random.random() < 0.75 else []
        if len(earlier) > 300:
            earlier = []
        prompt, rid, name = [*earlier, *unique], f"call-{number}", tokentap.log.name
        body = {"input_ids": prompt, "rid": rid, "sampling_params": {"max_new_tokens": self.random.randint(1, 6)}}
        status, _, reply = await self.ask("POST", f"{tokentap.data}/sessions/{session}/generate", body)
        if status != 200:
            return status
        self.calls.append(Call(rid, session, prompt, reply["output_ids"], name, time.monotonic()))
        self.done[session].append([*prompt, *reply["output_ids"]])
        return status

    async def chat(self, tokentap):
        messages = [{"role": "user", "content": f"question {next(self.numbers)}"}]
        body = {"model": "demo", "messages": messages, "max_tokens": 6}
        return (await self.ask("POST", f"{tokentap.data}/sessions/c-0/v1/chat/completions", body))[0]

    async def reward(self, tokentap):
        url = f"{tokentap.control}/v1/sessions/{self.session()}/reward"
        return (await self.ask("POST", url, {"reward": self.random.random()}))[0]

    async def freeze(self, tokentap):
        session = self.session()
        status, _, reply = await self.ask("POST", f"{tokentap.control}/v1/sessions/{session}/freeze")
        if status == 200 and session.startswith("s-"):
            exported = await self.export(tokentap, session, reply["version"])
            if exported[0] == 200:
                self.versions.append((session, reply["version"], exported[1], time.monotonic()))
        return status

    async def export(self, tokentap, session, version=None):
        body = {"sessions": [session], "format": "jsonl"}
        if version is not None:
            body["version"] = version
        return await self.ask("POST", f"{tokentap.control}/v1/samples", body)

    async def delete(self, tokentap):
        self.done["d-0"].clear()
        return (await self.ask("DELETE", f"{tokentap.control}/v1/sessions/d-0"))[0]

    async def read(self, tokentap):
        session, begun, name = self.session(), time.monotonic(), tokentap.log.name
        status, _, reply = await self.ask("GET", f"{tokentap.control}/v1/sessions/{session}")
        if status == 200:
            rids = [turn["rid"] for turn in reply["list"]]
            self.reads.append(Read(session, reply.get("generation", 0), rids, name, begun, time.monotonic()))
        return status

    async def counts(self, tokentap):
        """The counters and gauges of the ledger."""
        async with self.http.get(f"{tokentap.control}/metrics", timeout=aiohttp.ClientTimeout(total=3)) as reply:
            lines = (await reply.text()).splitlines()
        pairs = (line.rsplit(" ", 1) for line in lines if line.startswith("tokentap_ledger_") and "{" not in line)
        return {name.removeprefix("tokentap_ledger_"): float(value) for name, value in pairs}
