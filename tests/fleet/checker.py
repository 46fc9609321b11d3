# SPDX-License-Identifier: Apache-2.0
"""Compares the replies to the clients with the state of the tokentaps at the end."""

import asyncio
import collections
import json
import time

from faults import LOSSY, SWITCHING
from processes import until

# a turn is in the ledger at most this many seconds after the end of all faults
LATEST = 15

NO_HEALER = "Valkey lost all data, and the tokentap that wrote the turn ended before it could append it again"
NO_LOG = "detached in a tokentap without --data-dir when it ended"
BOTH = "the primary failed before a replica had the turn, and the tokentap that wrote it ended"


class Checker:
    """The checks of one history. `violations` are defects: a time or `None`, and a text. `lost` has turns whose loss the guide documents:
    a call and its cause."""

    def __init__(self, workload, faults, archive):
        self.archive, self.rows = archive, 0
        self.workload, self.faults, self.tokentaps = workload, faults, workload.tokentaps
        self.violations, self.lost = [], []
        self.is_lossy = any(entry.fault in LOSSY for entry in faults.disturbances)

    def is_disturbed(self, begin, end):
        return any(entry.begin <= end and begin <= entry.again + 2 for entry in self.faults.disturbances)

    def violation(self, text, at=None):
        self.violations.append((at, text))

    async def check(self):
        names = sorted({call.session for call in self.workload.calls})
        await self.turns_are_appended_without_a_read(names)
        lists = {name: await self.listed(name) for name in names}
        self.acknowledged_turns_are_listed_once(lists)
        self.reads_are_prefixes(lists)
        for name in names:
            if lists[name] is not None:
                await self.exports_are_equal(name)
        await self.frozen_versions_are_stable()
        await self.archive_is_complete(await self.stream_is_complete(lists))

    async def turns_are_appended_without_a_read(self, names):
        """The background of each tokentap appends what is detached: one tokentap is asked, the others are not."""
        begin, open_names = time.monotonic(), set(names)

        async def all_are_listed():
            for name in sorted(open_names):
                await self.freeze(name)
                if not self.missing(name, await self.list_of(self.tokentaps[0], name)):
                    open_names.discard(name)
            return not open_names

        try:
            await until("all turns are in the ledger", all_are_listed, LATEST)
        except TimeoutError:
            # those that are lost, and those that other tokentaps append when they are asked
            before = {name: self.missing(name, await self.list_of(self.tokentaps[0], name)) for name in open_names}
            for name in open_names:
                for one in self.tokentaps:
                    await self.list_of(one, name)
                await self.freeze(name)
                after = self.missing(name, await self.list_of(self.tokentaps[0], name))
                for call in before[name]:
                    if call not in after:
                        self.violation(f"{call.rid} of {name}, answered by {call.process}, was appended only after a read", call.ended)
        self.appended_after = time.monotonic() - begin

    def missing(self, name, rids):
        return [call for call in self.workload.calls if call.session == name != "d-0" and call.rid not in (rids or [])]

    async def freeze(self, name):
        """A frozen session lists the turns of its last frozen version only, so it is frozen before it is read."""

        async def is_frozen():
            status, _, _ = await self.workload.ask("POST", f"{self.tokentaps[0].control}/v1/sessions/{name}/freeze")
            statuses.append(status)
            return status in (200, 404)

        statuses = []
        try:
            await until(f"{name} is frozen", is_frozen, 20)
        except TimeoutError:
            self.violation(f"{name}: freezes at the end answer {statuses}")

    async def list_of(self, tokentap, name):
        status, _, reply = await self.workload.ask("GET", f"{tokentap.control}/v1/sessions/{name}")
        if status not in (200, 404):
            self.violation(f"{name}: {tokentap.name} answers {status} at the end")
        self.generation = reply.get("generation", 0) if status == 200 else None
        return [turn["rid"] for turn in reply["list"]] if status == 200 else None

    async def listed(self, name):
        found = []

        async def are_equal():
            # turns of replies that --strict ledger refused may be appended meanwhile
            found[:] = [(await self.list_of(one, name), self.generation) for one in self.tokentaps]
            return all(one == found[0] for one in found)

        try:
            await until(f"{name} is equal", are_equal, LATEST)
        except TimeoutError:
            shown = [f"{len(rids or [])} turns, generation {generation}" for rids, generation in found]
            self.violation(f"{name}: the tokentaps differ: {shown}; lists {[rids for rids, _ in found]}")
        return found[0]

    def acknowledged_turns_are_listed_once(self, lists):
        for call in self.workload.calls:
            rids = lists[call.session][0] or []
            if rids.count(call.rid) > 1:
                self.violation(f"{call.rid} of {call.session} is listed {rids.count(call.rid)} times", call.ended)
        for process in sorted({call.process for call in self.workload.calls}):
            own = [call for call in self.workload.calls if call.process == process and call.session != "d-0"]
            missing = [call for call in own if call.rid not in (lists[call.session][0] or [])]
            for call in missing:
                cause = self.documented_cause(call, missing)
                if cause:
                    self.lost.append((call, cause))
                else:
                    at = call.ended - self.faults.began
                    self.violation(f"{call.rid} of {call.session}, answered by {process} at {at:.1f} s, is lost", call.ended)

    def documented_cause(self, call, missing):
        """Why a turn may be lost, as docs/guides/fleet.md promises; `None` if it may not."""
        death = self.faults.deaths.get(call.process)
        if death is None:
            return None
        later = [entry for entry in self.faults.disturbances if entry.again >= call.ended]
        # with its own memory it could have appended them again until it ended
        if any(entry.fault in LOSSY and death.at <= entry.again + 3 for entry in later):
            return NO_HEALER
        one = next(one for one in self.tokentaps if call.process.startswith(f"{one.name}."))
        if one.is_strict or one.has_log:
            return None
        if len(missing) <= death.detached or (death.at - call.ended < 2 and self.is_disturbed(call.ended - 2, death.at)):
            return NO_LOG
        if any(entry.fault in SWITCHING for entry in later):
            return BOTH
        return None

    def reads_are_prefixes(self, lists):
        """A read has the order of the end, unless a failover has changed it, which the generation tells."""
        shortened = {call.session for call, _ in self.lost}
        for read in self.workload.reads:
            final, generation = lists.get(read.session, (None, 0))
            if read.session == "d-0" or read.session in shortened or (final is not None and read.generation != generation):
                continue
            if final is None or final[: len(read.rids)] != read.rids:
                at = f"{read.begun - self.faults.began:.1f} to {read.ended - self.faults.began:.1f} s"
                text = f"{read.session}: {read.process} listed {read.rids} in generation {read.generation} at {at}, no prefix of {final}"
                self.violation(text, read.ended)

    async def exports_are_equal(self, name):
        exports = [await self.workload.export(one, name) for one in self.tokentaps]
        if any(one[:2] != exports[0][:2] for one in exports):
            self.violation(f"{name}: exports differ: {[(one[0], len(one[1])) for one in exports]}")

    async def frozen_versions_are_stable(self):
        """A frozen version is confirmed, so only a loss of all data can change it."""
        for session, version, data, at in self.workload.versions:
            if any(entry.fault in LOSSY and entry.again >= at for entry in self.faults.disturbances):
                continue
            for one in self.tokentaps:
                status, found, _ = await self.workload.export(one, session, version)
                if (status, found) != (200, data):
                    self.violation(f"{session}: version {version} of {at - self.faults.began:.1f} s differs at {one.name} ({status})", at)

    async def stream_is_complete(self, lists):
        """Every process streams the same rows; their tokens are those of the calls, each sampled one trained once. Returns the rows."""
        streams = [await self.stream(one) for one in self.tokentaps]
        if any(set(stream) != set(streams[0]) for stream in streams):
            self.violation(f"the streams differ: {[len(stream) for stream in streams]} paths")
        # after a failover a path may be listed twice, with the same content
        may_repeat = any(entry.fault in LOSSY | SWITCHING for entry in self.faults.disturbances)
        calls = {call.rid: call for call in self.workload.calls}
        trained, paths, seen = collections.Counter(), collections.Counter(), set()
        for row in streams[0].values():
            rids = {turn["id"]: turn["rid"] for turn in row["turns"]}
            path = row["session"], rids.get(row["leaf"])
            content = *path, *row["token_ids"], *row["loss_mask"]
            if may_repeat and content in seen:
                continue
            seen.add(content)
            paths[path] += 1
            for segment in row["segments"]:
                call = calls.get(rids.get(segment["turn"]))
                if segment["kind"] != "response" or call is None:
                    continue
                trained[call.rid] += segment["loss_mask"]
                sent, sampled = row["token_ids"][: segment["start"]], row["token_ids"][segment["start"] : segment["end"]]
                if (sent, sampled) != (call.prompt, call.response):
                    self.violation(f"{row['session']}: the tokens of {call.rid} are not those of its call", call.ended)
        for name, (rids, _) in lists.items():
            for rid in rids or []:
                if name != "d-0" and rid in calls and trained[rid] != 1:
                    self.violation(f"{name}: {rid} is trained {trained[rid]} times in the stream", calls[rid].ended)
        for path, count in paths.items():
            if count > 1 and path[0] != "d-0":
                self.violation(f"path {path} is {count} times in the stream")
        return list(streams[0].values())

    async def archive_is_complete(self, rows):
        """The archive has each row of the stream, once if no data was lost."""
        may_repeat = any(entry.fault in LOSSY | SWITCHING for entry in self.faults.disturbances)
        expected, found = {row["row_key"] for row in rows}, []

        async def is_complete():
            # the connections to the ledger pass through this loop, which must not wait for the storage
            found[:] = await asyncio.to_thread(self.archived)
            return expected <= {key for key, _ in found}

        try:
            await until("the archive is complete", is_complete, LATEST + 30)
        except TimeoutError:
            missing = expected - {key for key, _ in found}
            self.violation(f"{len(missing)} of {len(expected)} rows of the stream are not archived: {sorted(missing)[:5]}")
        for key, count in collections.Counter(key for key, _ in found).items():
            if count > 1 and not may_repeat:
                self.violation(f"row {key} is {count} times in the archive")
        for key, session in found:
            # sessions of that name are deleted
            if key not in expected and session != "d-0" and not may_repeat:
                self.violation(f"row {key} of {session} is in the archive, and not in the stream")
        self.rows = len(found)

    def archived(self):
        """The row keys and sessions of the archive."""
        found = []
        for table in self.archive.tables(["row_key", "session"]):
            found += zip(*(table.column(name).to_pylist() for name in ("row_key", "session")), strict=True)
        return found

    async def stream(self, tokentap):
        """All lines of finished paths by cursor, read in pages."""
        rows, since = {}, None
        while True:
            query = "?limit=50" + (f"&since={since}" if since else "")
            status, data, _ = await self.workload.ask("GET", f"{tokentap.control}/v1/trajectories{query}")
            if status != 200:
                self.violation(f"{tokentap.name}: /v1/trajectories answers {status}")
                return rows
            lines = [json.loads(line) for line in data.splitlines()]
            rows.update({line["cursor"]: line for line in lines if "turns" in line})
            cursors = [line["cursor"] for line in lines if "cursor" in line]
            if not cursors:
                return rows
            since = cursors[-1]
