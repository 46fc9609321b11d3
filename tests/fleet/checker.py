"""Compares the replies to the clients with the state of the tokentaps at the end."""

import collections
import json

from faults import LOSSY
from processes import until


class Checker:
    """The checks of one history. `violations` are defects; `lost` counts what a fault excuses, by cause."""

    def __init__(self, workload, faults):
        self.workload, self.faults, self.tokentaps = workload, faults, workload.tokentaps
        self.violations, self.lost = [], collections.Counter()
        self.is_lossy = any(entry[0] in LOSSY for entry in faults.disturbances)

    def is_disturbed(self, begin, end):
        return any(entry[1] <= end and begin <= entry[3] + 2 for entry in self.faults.disturbances)

    def violation(self, text):
        self.violations.append(text)

    async def check(self):
        await self.nothing_is_detached()
        names = sorted({call.session for call in self.workload.calls})
        for name in names:
            # a frozen session lists the turns of its last frozen version only
            await self.workload.ask("POST", f"{self.tokentaps[0].control}/v1/sessions/{name}/freeze")
        lists = {name: await self.listed(name) for name in names}
        self.acknowledged_turns_are_listed_once(lists)
        self.reads_are_prefixes(lists)
        for name in names:
            if lists[name] is not None:
                await self.exports_are_equal(name)
        await self.frozen_versions_are_stable()
        await self.stream_is_complete(lists)

    async def nothing_is_detached(self):
        """Detached turns have joined; turns of deleted sessions cannot."""
        deleted = sum(call.session == "d-0" for call in self.workload.calls)

        async def settled():
            counts = [await self.workload.counts(one) for one in self.tokentaps]
            left = sum(count["turns_detached_total"] - count["turns_joined_total"] for count in counts)
            return left <= deleted

        try:
            await until("detached turns have joined", settled, 20)
        except TimeoutError:
            for one in self.tokentaps:
                count = await self.workload.counts(one)
                if count["turns_detached_total"] > count["turns_joined_total"]:
                    self.violation(f"{one.name}: {count['turns_detached_total']} detached, {count['turns_joined_total']} joined")

    async def listed(self, name):
        found = []
        for one in self.tokentaps:
            status, _, reply = await self.workload.ask("GET", f"{one.control}/v1/sessions/{name}")
            if status not in (200, 404):
                self.violation(f"{name}: {one.name} answers {status} at the end")
            found.append([turn["rid"] for turn in reply["list"]] if status == 200 else None)
        if any(one != found[0] for one in found):
            self.violation(f"{name}: the tokentaps list {found}")
        return found[0]

    def acknowledged_turns_are_listed_once(self, lists):
        missing_of = collections.defaultdict(list)
        for call in self.workload.calls:
            count = (lists[call.session] or []).count(call.rid)
            if count > 1:
                self.violation(f"{call.rid} of {call.session} is listed {count} times")
            if count == 1 or call.session == "d-0":
                continue
            missing_of[call.process].append(call)
        for process, missing in missing_of.items():
            killed = self.faults.killed.get(process)
            disturbed = [call for call in missing if killed and self.is_disturbed(call.ended - 2, call.ended)]
            for call in missing:
                if killed and self.is_lossy:
                    self.lost["lost by the ledger, and its process was killed"] += 1
                elif killed and len(missing) <= killed[1]:
                    self.lost["detached in a killed process"] += 1
                elif call in disturbed and any(
                    entry[0] != "kill_tokentap" and entry[1] <= call.ended <= entry[3] + 2 for entry in self.faults.disturbances
                ):
                    self.lost["detached in a killed process"] += 1
                else:
                    self.violation(f"{call.rid} of {call.session}, answered by {process}, is lost")

    def reads_are_prefixes(self, lists):
        for read in self.workload.reads:
            final = lists.get(read.session)
            if read.session == "d-0" or self.is_lossy or self.is_disturbed(read.begun, read.ended):
                continue
            if final is None or final[: len(read.rids)] != read.rids:
                self.violation(f"{read.session}: {read.process} listed {read.rids}, no prefix of {final}")

    async def exports_are_equal(self, name):
        exports = [await self.workload.export(one, name) for one in self.tokentaps]
        if any(one[:2] != exports[0][:2] for one in exports):
            self.violation(f"{name}: exports differ: {[(one[0], len(one[1])) for one in exports]}")

    async def frozen_versions_are_stable(self):
        for session, version, data, at in self.workload.versions:
            if self.is_lossy or self.is_disturbed(at - 2, at):
                continue
            for one in self.tokentaps:
                status, found, _ = await self.workload.export(one, session, version)
                if (status, found) != (200, data):
                    self.violation(f"{session}: version {version} differs at {one.name} ({status})")

    async def stream_is_complete(self, lists):
        """Every process streams the same rows; their tokens are those of the calls, each sampled one trained once."""
        streams = [await self.stream(one) for one in self.tokentaps]
        if any(set(stream) != set(streams[0]) for stream in streams):
            self.violation(f"the streams differ: {[len(stream) for stream in streams]} paths")
        calls = {call.rid: call for call in self.workload.calls}
        trained, paths = collections.Counter(), collections.Counter()
        for row in streams[0].values():
            rids = {turn["id"]: turn["rid"] for turn in row["turns"]}
            paths[row["session"], rids.get(row["leaf"])] += 1
            for segment in row["segments"]:
                call = calls.get(rids.get(segment["turn"]))
                if segment["kind"] != "response" or call is None:
                    continue
                trained[call.rid] += segment["loss_mask"]
                sent, sampled = row["token_ids"][: segment["start"]], row["token_ids"][segment["start"] : segment["end"]]
                if (sent, sampled) != (call.prompt, call.response):
                    self.violation(f"{row['session']}: the tokens of {call.rid} are not those of its call")
        for name, rids in lists.items():
            for rid in rids or []:
                if name != "d-0" and rid in calls and trained[rid] != 1 and not (self.is_lossy and trained[rid] > 1):
                    self.violation(f"{name}: {rid} is trained {trained[rid]} times in the stream")
        for path, count in paths.items():
            if count > 1 and not self.is_lossy and path[0] != "d-0":
                self.violation(f"path {path} is {count} times in the stream")

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
