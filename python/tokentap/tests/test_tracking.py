# SPDX-License-Identifier: Apache-2.0
"""The numbers of `tokentap._tracking`, compared with a reference that plain Python computes from the trajectories."""

from __future__ import annotations

import json
import logging
import math
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Demo, running
from scripted import Handler, Scripted, leave, reply, tear

from tokentap import AsyncClient, Client, HttpError
from tokentap._tracking import QUANTILES, Distribution, Follower, Increases, Record, Row, Rows, Writer, policy_of

Line = dict[str, Any]


class Memory:
    """Keeps the records, at most `room`; `fails` is the number of writes that fail first."""

    def __init__(self, background: bool = True, fails: int = 0, room: int = 1_000_000) -> None:
        self.background, self.fails, self.room = background, fails, room
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        if self.fails or len(self.records) >= self.room:
            self.fails = max(self.fails - 1, 0)
            raise OSError("the tracker is away")
        self.records.append(record)


def follow(client: Client, writer: Writer, **options: Any) -> Follower:
    return Follower(client, writer, **{"interval": 0.01, **options})


@pytest.fixture
def client(demo: Demo) -> Iterator[Client]:
    with Client(demo.data, demo.control, retries=0) as made:
        yield made


def latest(client: Client) -> str | None:
    """The cursor after everything that finished."""
    lines = list(client.finished())
    return lines[-1]["cursor"] if lines else None


# The reference: numbers in float64, from the lines alone.


def quantile(values: list[float], percent: int) -> float:
    """The smallest value that has this share of the values up to it."""
    ordered = sorted(values)
    return ordered[max(math.ceil(len(ordered) * percent / 100) - 1, 0)]


def reference(lines: list[Line]) -> dict[str, float]:
    """The expected numbers of a record, without those of counters and policies."""
    rows = [line for line in lines if "token_ids" in line]
    by_estimator: dict[str, list[float]] = {}
    for row in rows:
        for segment in row["segments"]:
            turn = next(turn for turn in row["turns"] if turn["id"] == segment["turn"])
            for at in range(segment["start"], segment["end"]):
                if row["loss_mask"][at] == 1 and row["entropy"][at] is not None:
                    by_estimator.setdefault(turn["measured"]["estimator"], []).append(row["entropy"][at])
    rewards = [row["reward"] for row in rows if row["reward"] is not None]
    rewards = [one["score"] if isinstance(one, dict) else one for one in rewards]
    expected: dict[str, float] = {
        "rows/count": len(rows),
        "rows/truncated": sum(row["finish_reason"] == "length" for row in rows),
        "rows/policy_uncertain": sum("policy_uncertain" in row["flags"] for row in rows),
        "rows/mixed_adapters": sum("mixed_adapters" in row["flags"] for row in rows),
        "rows/crosses_versions": sum("crosses_versions" in row["flags"] for row in rows),
        "rows/incomplete": sum("incomplete" in row["flags"] for row in rows),
        "paths/gone": sum("gone" in line for line in lines),
        "tokens/trained": sum(sum(row["loss_mask"]) for row in rows),
        "tokens/measured": sum(len(values) for values in by_estimator.values()),
        "reward/rows": len(rewards),
    }
    if rewards:
        expected |= {"reward/mean": sum(rewards) / len(rewards), "reward/min": min(rewards), "reward/max": max(rewards)}
    for estimator, values in by_estimator.items():
        expected[f"entropy/{estimator}/tokens"] = len(values)
        expected[f"entropy/{estimator}/mean"] = math.fsum(values) / len(values)
        for percent in QUANTILES:
            expected[f"entropy/{estimator}/p{percent:02}"] = quantile(values, percent)
    return expected


def assert_equal_numbers(found: dict[str, float], expected: dict[str, float]) -> None:
    """Equal names and numbers; quantiles have the width of a bin."""
    for name, value in expected.items():
        precision = 2.5e-4 if "/p" in name and name.startswith("entropy") else 1e-12
        assert found[name] == pytest.approx(value, rel=precision), name
    named = {name for name in found if name.split("/")[0] in ("entropy", "reward")}
    assert named == {name for name in expected if name.split("/")[0] in ("entropy", "reward")}


def record_sessions(client: Client, session: str) -> list[str]:
    """Sessions with branches, several turns, several estimators, rewards of both kinds, and missing facts."""
    names = [f"{session}-{at}" for at in range(8)]
    for at, name in enumerate(names):
        sampling = {"max_new_tokens": 3 + 2 * at, "temperature": 0.9, "sampling_seed": at}
        options: dict[str, Any] = {}
        if at == 2:
            options["return_entropy"] = False
        if at == 3:
            options["entropy_options"] = {"estimator": "renormalized"}
        first = client.generate(input_ids=[299, 467], session=name, sampling_params=sampling, **options)
        if at % 3 == 0:
            client.generate(input_ids=[299, 467], session=name, sampling_params={**sampling, "sampling_seed": 99})
        if at % 2 == 0:
            prompt = [299, 467, *first.output_ids, 258]
            client.generate(input_ids=prompt, session=name, sampling_params=sampling)
            # its row has the first response as context, with entropies
            client.generate(input_ids=[*prompt, 5], session=name, sampling_params=sampling)
        if at in (1, 4):
            client.reward(name, at / 4)
        if at == 6:
            client.reward(name, {"score": -2.5, "style": 1})
        client.freeze(name)
    client.delete(names[7])
    return names


def test_numbers_of_a_step_equal_the_reference(client: Client, session: str) -> None:
    since, memory = latest(client), Memory()
    # a long interval: only log_step reads, after a session was deleted
    with follow(client, memory, since=since, limit=3, interval=60) as follower:
        follower.log_step(6)
        record_sessions(client, session)
        follower.log_step(7)
        client.generate(input_ids=[5, 6], session=f"{session}-last", sampling_params={"max_new_tokens": 4}, done=True)
        follower.log_step(8)
    lines = list(client.finished(since))
    assert [record.step for record in memory.records] == [6, 7, 8]
    _, first, last = memory.records
    assert_equal_numbers(first.values, reference(lines[:-1]))
    assert_equal_numbers(last.values, reference(lines[-1:]))
    assert {"entropy/estimate/mean", "entropy/renormalized/p50", "reward/mean"} <= set(first.values)
    assert first.values["tokens/measured"] < first.values["tokens/trained"]
    assert first.values["paths/gone"] >= 1
    rows = [line for line in lines if "token_ids" in line]
    context = sum(
        nats is not None and not mask
        for row in rows
        for mask, nats in zip(row["loss_mask"], row["entropy"], strict=True)
    )
    assert context > 0, "some measured tokens are trained in another row"
    assert last.values["rows/total"] == first.values["rows/count"] + 1
    assert not first.values["follower/behind"]
    assert follower.cursor == lines[-1]["cursor"]


def test_absent_facts_stay_absent(client: Client, session: str) -> None:
    memory = Memory()
    with follow(client, memory, since=latest(client)) as follower:
        follower.log_step(0, version=3)
        client.generate(
            input_ids=[5, 6], session=session, sampling_params={"max_new_tokens": 4}, return_entropy=False, done=True
        )
        follower.log_step(1, version=3)
    empty, unmeasured = (record.values for record in memory.records)
    assert empty["rows/count"] == 0
    assert (unmeasured["rows/count"], unmeasured["tokens/trained"], unmeasured["tokens/measured"]) == (1, 4, 0)
    for values in (empty, unmeasured):
        assert values["reward/rows"] == 0
        assert not [name for name in values if name.startswith(("entropy/", "reward/m", "staleness/"))]


def test_rewards_by_version_and_staleness(client: Client, session: str) -> None:
    memory, expected = Memory(), {4: [1.0, 0.0], 5: [0.5]}
    with follow(client, memory, since=latest(client)) as follower:
        for version, rewards in expected.items():
            client.set_policy(version)
            for at, reward in enumerate([*rewards, None]):
                name = f"{session}-{version}-{at}"
                client.generate(
                    input_ids=[5, 6], session=name, sampling_params={"max_new_tokens": 4 * version, "ignore_eos": True}
                )
                if reward is not None:
                    client.reward(name, reward)
                client.freeze(name)
        follower.log_step(1, version="6")
        # a later row changes the number of its policy, which has all rows
        name = f"{session}-late"
        client.generate(input_ids=[5, 6], session=name, sampling_params={"max_new_tokens": 4, "ignore_eos": True})
        client.reward(name, 1.5)
        client.freeze(name)
        follower.log_step(2, version=5)
    first, second = memory.records
    assert {number: values["reward/mean"] for (_, number), values in first.policies.items()} == {4: 0.5, 5: 0.5}
    assert {kind for kind, _ in first.policies} == {"version"}
    assert [values["rows"] for values in first.policies.values()] == [3, 2]
    assert first.policies["version", 4]["entropy/estimate/tokens"] == 48
    assert list(second.policies) == [("version", 5)]
    assert second.policies["version", 5]["reward/mean"] == 1.0
    tokens = {4: 3 * 16, 5: 2 * 20}
    late = sum((6 - version) * count for version, count in tokens.items())
    assert first.values["staleness/mean"] == pytest.approx(late / sum(tokens.values()), rel=1e-12)
    assert (first.values["staleness/max"], first.values["staleness/tokens"]) == (2, 88)
    assert (second.values["staleness/mean"], second.values["staleness/max"]) == (0, 0)


@pytest.mark.parametrize(
    ("span", "policy"),
    [
        ({"version": "12", "weight_version": "3"}, ("version", 12)),
        ({"version": "step-2", "weight_version": "3"}, ("weight_version", 3)),
        ({"version": None, "weight_version": "default"}, ("epoch", 1)),
        ({"version": None, "weight_version": "default", "process": "a" * 16}, None),
        ({"version": "12", "weight_version": None, "process": "a" * 16}, ("version", 12)),
        ({"version": "12", "weight_version": None, "until": 2}, None),
        ({"version": "1.5", "weight_version": "٣"}, ("epoch", 1)),
    ],
)
def test_policy_of_a_span(span: Line, policy: Any) -> None:
    assert policy_of({"start": 0, "end": 1, "epoch": 1, **span}) == policy


def test_a_distribution_has_the_quantiles_of_its_values() -> None:
    random.seed(1)
    every = [random.lognormvariate(-3, 3) for _ in range(20_000)] + [0.0] * 1500
    distribution = Distribution()
    for at in range(0, len(every), 1000):
        distribution.add(every[at : at + 1000])
    assert distribution.mean == pytest.approx(math.fsum(every) / len(every), rel=1e-12)
    percents = [0, 1, 5, 25, 50, 75, 95, 99, 100]
    for percent, value in zip(percents, distribution.quantiles(percents), strict=True):
        assert value == pytest.approx(quantile(every, percent), rel=2.5e-4), percent
    single = Distribution()
    single.add([-0.0])
    assert (single.mean, single.quantiles([5, 95])) == (0.0, [0.0, 0.0])


def test_counters_rise_from_the_first_reading_and_continue_after_a_reset() -> None:
    def text(**values: float) -> str:
        lines = [f'tokentap_chat_drift_total{{drift="{name}"}} {value}' for name, value in values.items()]
        return "\n".join(["# HELP x y", *lines, "tokentap_uncaptured_total 3", "tokentap_other_total 9"])

    read = Increases(["tokentap_chat_drift_total", "tokentap_uncaptured_total"])
    read.read(text(none=5))
    assert read.values == {"counters/chat_drift_total/none": 0, "counters/uncaptured_total": 0}
    read.read(text(none=7, sampled_text=2))
    read.read(text(none=1))
    assert read.values["counters/chat_drift_total/none"] == 3
    assert read.values["counters/chat_drift_total/sampled_text"] == 2
    odd = Increases(["x"])
    odd.read('x{a="b \\"c\\" }d",e="f"} 1\n')
    assert list(odd.values) == ["counters/x/b_c_d/f"]


def test_the_counters_of_a_demo_are_read(client: Client, session: str) -> None:
    memory = Memory()
    counters = ["tokentap_turns_total", "tokentap_chat_drift_total"]
    with follow(client, memory, since=latest(client), counters=counters) as follower:
        follower.log_step(0)
        for _ in range(3):
            client.generate(input_ids=[5, 6], session=session, sampling_params={"max_new_tokens": 2})
        follower.log_step(1)
    found = [record.values.get("counters/turns_total/trainable", 0) for record in memory.records]
    assert found[1] - found[0] == 3


# Failures.


def line(number: int, **members: Any) -> Line:
    """A path of two prompt and two sampled tokens."""
    return {
        "session": f"s{number}",
        "segments": [
            {"turn": 0, "kind": "prompt", "start": 0, "end": 2},
            {"turn": 0, "kind": "response", "start": 2, "end": 4},
        ],
        "token_ids": [1, 2, 3, 4],
        "loss_mask": [0, 0, 1, 1],
        "entropy": [None, None, float(number), None],
        "policy": [{"start": 2, "end": 4, "epoch": 0, "weight_version": "default", "version": None}],
        "finish_reason": "stop",
        "flags": [],
        "reward": float(number),
        "turns": [{"id": 0, "fault": None, "measured": {"estimator": "estimate"}}],
        "row_key": f"{number:032x}",
        "cursor": f"store-{number}",
        **members,
    }


class Control:
    """A control port with finished paths, each request of which may fail."""

    def __init__(self, server: Scripted, *lines: Line) -> None:
        self.lines, self.failures, self.since = list(lines), [], []  # type: ignore[var-annotated]
        self.metrics = "tokentap_uncaptured_generations_total 1\n"
        server.script(self.answer)

    def answer(self, handler: Handler) -> None:
        if handler.path.startswith("/metrics"):
            reply(200, self.metrics, "text/plain")(handler) if self.metrics else leave(handler)
            return
        if self.failures:
            self.failures.pop(0)(handler)
            return
        self.page(handler)

    def page(self, handler: Handler) -> None:
        query = dict(part.split("=") for part in handler.path.partition("?")[2].split("&"))
        since, limit = query.get("since"), int(query["limit"])
        self.since.append(since)
        cursors = [one.get("cursor") for one in self.lines]
        if since is not None and since not in cursors:
            reply(410, json.dumps({"error": {"code": "other_store", "message": "m"}}))(handler)
            return
        found = self.lines[cursors.index(since) + 1 if since else 0 :][:limit]
        reply(200, "".join(json.dumps(one) + "\n" for one in found), "application/x-ndjson")(handler)


@pytest.fixture
def control(scripted: Scripted) -> Callable[..., Control]:
    return lambda *lines: Control(scripted, *lines)


def until(condition: Callable[[], Any], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "never happened"
        time.sleep(0.005)


def scripted_client(server: Scripted) -> Client:
    return Client(server.data, server.control, retries=60, pause=100.0, timeout=20)


def totals(memory: Memory) -> tuple[float, float]:
    """Rows and the sum of their rewards over all records."""
    rows = sum(record.values["rows/count"] for record in memory.records)
    rewards = sum(record.values.get("reward/mean", 0) * record.values["reward/rows"] for record in memory.records)
    return rows, rewards


def test_each_row_counts_once_although_requests_fail(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(*[line(number) for number in range(1, 41)])
    torn = json.dumps(line(1)).encode() + b"\n"
    # pages that arrive between failures, and one that the follower does not get
    failures = [reply(500, "x"), leave, tear(torn, 10_000), tear(torn, None), reply(200, "{}"), reply(200, "{")]
    for failure in failures:
        served.failures += [failure, served.page]
    memory = Memory(fails=3)
    with scripted_client(scripted) as client:
        with follow(client, memory, limit=7) as follower:
            for step in range(10):
                follower.log_step(step)
            assert not served.failures
        assert totals(memory) == (40, sum(range(1, 41)))
        assert follower.cursor == "store-40"
        assert follower.pending == 0
    assert max(served.since.count(since) for since in served.since) > 1, "requests were repeated"


def test_a_control_port_that_is_away_delays_rows_and_raises_nothing(
    scripted: Scripted, control: Callable[..., Control], caplog: pytest.LogCaptureFixture
) -> None:
    served = control(line(1))
    served.failures = [leave] * 10_000
    memory = Memory()
    with caplog.at_level(logging.INFO, "tokentap"), scripted_client(scripted) as client:
        with follow(client, memory) as follower:
            begun = time.monotonic()
            for step in range(5):
                follower.log_step(step)
            assert time.monotonic() - begun < 5, "a failed reading does not use up the wait"
            served.failures.clear()
            follower.log_step(5)
        assert [record.values["rows/count"] for record in memory.records] == [0, 0, 0, 0, 0, 1]
        assert [record.values["follower/behind"] for record in memory.records] == [1, 1, 1, 1, 1, 0]
    assert caplog.text.count("reading finished paths failed") == 1, "an equal failure is logged once"
    assert "reading finished paths succeeded again" in caplog.text


def test_rows_are_read_without_metrics(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(line(1))
    served.metrics = ""
    memory = Memory()
    with scripted_client(scripted) as client, follow(client, memory) as follower:
        follower.log_step(0)
        served.metrics = "tokentap_uncaptured_generations_total 4\n"
        follower.log_step(1)
    first, second = (record.values for record in memory.records)
    assert (first["rows/count"], first["follower/behind"]) == (1, 0)
    assert not [name for name in first if name.startswith("counters/")]
    assert second["counters/uncaptured_generations_total"] == 0


def test_a_control_port_that_hangs_delays_a_step_by_wait(scripted: Scripted) -> None:
    scripted.script(scripted.hang)
    memory = Memory()
    with scripted_client(scripted) as client:
        follower = follow(client, memory, wait=0.1)
        begun = time.monotonic()
        follower.log_step(0)
        assert time.monotonic() - begun < 2
        follower.stop(timeout=0.2)
        assert time.monotonic() - begun < 4
        assert [record.values["follower/behind"] for record in memory.records] == [1]
        scripted.released.set()


@pytest.mark.parametrize("background", [True, False])
def test_a_tracker_that_fails_gets_every_record_later(
    scripted: Scripted, control: Callable[..., Control], background: bool
) -> None:
    served = control(line(1))
    memory = Memory(background, fails=10_000)
    with scripted_client(scripted) as client:
        with follow(client, memory) as follower:
            for step in range(3):
                follower.log_step(step)
                served.lines.append(line(step + 2))
            assert not memory.records
            assert follower.pending == 3
            assert follower.cursor is None, "rows that are not written are read again after a restart"
            memory.fails = 0
            follower.log_step(3)
        assert [record.step for record in memory.records] == [0, 1, 2, 3]
        assert totals(memory) == (4, 10)
        again = Memory()
        with follow(client, again, since=memory.records[1].cursor) as other:
            other.log_step(2)
        assert totals(again) == (2, 7)


def test_records_that_stop_could_not_write_are_written_by_the_next_stop(
    scripted: Scripted, control: Callable[..., Control], caplog: pytest.LogCaptureFixture
) -> None:
    control(line(1))
    memory = Memory(fails=10_000)
    with scripted_client(scripted) as client:
        follower = follow(client, memory)
        follower.log_step(0)
        follower.stop()
        assert "1 records were not written" in caplog.text
        memory.fails = 0
        follower.stop()
        assert totals(memory) == (1, 1)
        follower.log_step(1)
        assert len(memory.records) == 1, "a stopped follower logs nothing"


def test_the_cursor_is_that_of_the_rows_that_were_written(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(line(1))
    memory = Memory(background=False, room=1)
    with scripted_client(scripted) as client:
        follower = follow(client, memory, since=None)
        memory.fails = 1
        follower.log_step(0)
        served.lines.append(line(2))
        follower.log_step(1)
        assert (follower.cursor, follower.pending) == ("store-1", 1)
        memory.room = 2
        follower.stop()
        assert (follower.cursor, follower.pending) == ("store-2", 0)


def test_strict_raises_the_failure(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(line(1))
    with scripted_client(scripted) as client:
        follower = follow(client, Memory(background=False, fails=1), strict=True)
        with pytest.raises(OSError, match="away"):
            follower.log_step(0)
        follower.log_step(1)
        served.failures = [reply(403, "no")] * 10_000
        with pytest.raises(HttpError):
            follower.log_step(2)
        served.failures.clear()
        follower.stop()


def test_a_row_that_is_listed_again_counts_once(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(line(1), line(2))
    memory = Memory()
    with scripted_client(scripted) as client:
        with follow(client, memory) as follower:
            follower.log_step(0)
            # a failover: the same path with another cursor
            served.lines.append(line(2, cursor="store-3", reward=100.0))
            follower.log_step(1)
            # another store, which was restored from the log
            served.lines = [line(2, cursor="other-1"), line(4, cursor="other-2")]
            follower.log_step(2)
        assert totals(memory) == (3, 7)
        last = memory.records[-1].values
        assert (last["paths/repeated"], last["paths/store_changes"]) == (1, 1)
        assert [list(record.policies) for record in memory.records] == [[("epoch", 0)], [], []]


def test_lines_that_are_not_rows_are_counted(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(
        {"missed": 7},
        line(1),
        {"session": "a", "gone": "evicted", "cursor": "store-2"},
        {"session": "a", "leaf": 0, "refused": "class_auxiliary", "cursor": "store-3"},
        line(4, entropy=[None]),
        line(5, segments=None),
        {"missed": None},
    )
    memory = Memory()
    with scripted_client(scripted) as client:
        with follow(client, memory) as follower:
            follower.log_step(0)
            assert "store-5" not in served.since, "a reply that ends without a cursor comes again"
            served.lines.append(line(6))
            follower.log_step(1)
        rows, _ = totals(memory)
    found = {name: sum(r.values[f"paths/{name}"] for r in memory.records) for name in ("gone", "refused", "missed")}
    assert rows == 2
    assert found == {"gone": 1, "refused": 1, "missed": 7}
    assert sum(record.values["paths/missed_unknown"] for record in memory.records) == 1
    assert sum(record.values["paths/unreadable"] for record in memory.records) == 2


def test_every_writes_without_steps(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(line(1), line(2))
    memory = Memory(background=False)
    with scripted_client(scripted) as client:
        with follow(client, memory, every=0.02) as follower:
            until(lambda: len(memory.records) >= 2)
            served.lines.append(line(3))
            until(lambda: memory.records[-1].step == 3)
            with pytest.raises(ValueError, match="every"):
                follower.log_step(1)
        assert totals(memory) == (3, 6)


def test_rows_after_the_last_step_are_the_next_one(scripted: Scripted, control: Callable[..., Control]) -> None:
    served = control(line(1))
    memory = Memory()

    def train(client: Client) -> None:
        with follow(client, memory) as follower:
            follower.log_step(10)
            served.lines.append(line(2))
            raise KeyError("of the trainer")

    with scripted_client(scripted) as client, pytest.raises(KeyError, match="of the trainer"):
        train(client)
    assert [(record.step, record.values["rows/count"]) for record in memory.records] == [(10, 1), (11, 1)]
    assert "tokentap-follower" not in [thread.name for thread in threading.enumerate()]


def test_a_step_that_is_not_a_number_raises_nothing(scripted: Scripted, control: Callable[..., Control]) -> None:
    control(line(1))
    memory = Memory()
    with scripted_client(scripted) as client, follow(client, memory) as follower:
        follower.log_step("x")  # type: ignore[arg-type]
    assert totals(memory) == (1, 1)


def test_status_of_a_row_as_in_exports() -> None:
    def counted(finish: str | None, fault: str | None, *flags: str) -> list[str]:
        turns = [{"id": 0, "fault": fault, "measured": {"estimator": "estimate"}}]
        return Row.of(line(1, turns=turns, finish_reason=finish, flags=list(flags))).counted

    assert counted("stop", None, "incomplete", "other") == ["incomplete"]
    assert counted("length", None, "policy_uncertain") == ["policy_uncertain", "truncated"]
    assert counted("length", "forwarded") == ["truncated"]
    assert counted("abort", None) == counted(None, "disconnected") == ["aborted"]
    assert counted("length", "ids_mismatch") == counted(None, None) == ["failed"]


def test_policies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokentap._tracking.POLICIES", 2)
    monkeypatch.setattr("tokentap._tracking.REMEMBERED", 3)
    rows = Rows()

    def add(number: int, epoch: int) -> None:
        rows.add(Row.of(line(number, policy=[{"start": 2, "end": 4, "epoch": epoch}])))

    for number in range(5):
        add(number, number)
    add(9, 1)
    values, policies = rows.take(None)
    assert values["rows/count"] == 6
    assert list(policies) == [("epoch", 3), ("epoch", 4)]


def test_invalid_options_are_refused(demo: Demo, client: Client) -> None:
    for options in ({"interval": 0}, {"every": -1.0}, {"limit": 0}):
        with pytest.raises(ValueError, match="more than 0"):
            Follower(client, Memory(), **options)
    with pytest.raises(ValueError, match=r"tokentap\.Client"):
        Follower(AsyncClient(demo.data, demo.control), Memory())  # type: ignore[arg-type]


def test_the_adapters_do_not_shadow_the_packages(tmp_path: Path) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        (tmp_path / f"{name}.py").write_text(f"real = {name!r}\n")
        code = f"import tokentap.{name}, {name}; assert {name}.real == {name!r}; assert tokentap.{name} is not {name}"
        path = [str(tmp_path), *sys.path]
        made = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"], capture_output=True, text=True
        )
        assert made.returncode == 0, made.stderr
    # a run of the real module is looked up in it, not in tokentap
    (tmp_path / "wandb.py").write_text("run = None\n")
    (tmp_path / "mlflow.py").write_text("active_run = lambda: None\n")
    for name in ("wandb", "mlflow"):
        code = f"import tokentap, tokentap.{name} as t; t.follow(tokentap.Client())"
        made = subprocess.run(
            [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; {code}"], capture_output=True, text=True
        )
        assert "run: call" in made.stderr, made.stderr


def test_importing_the_adapters_needs_no_package() -> None:
    code = """
import sys, tokentap.wandb, tokentap.mlflow, tokentap.tensorboard
assert not {"wandb", "mlflow", "tensorboard", "tensorboardX", "numpy"} & set(sys.modules)
"""
    path = f"import sys; sys.path[:] = {sys.path!r}"
    made = subprocess.run([sys.executable, "-c", f"{path}\n{code}"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr


def test_a_restart_without_a_log_is_followed(session: str) -> None:
    memory = Memory()
    with running() as first:
        port = first.control.rsplit(":", 1)[1]
        client = Client(first.data, first.control, retries=0)
        follower = follow(client, memory)
        client.generate(input_ids=[5, 6], session="a", sampling_params={"max_new_tokens": 4}, done=True)
        follower.log_step(0)
    follower.log_step(1)
    with running("--control-listen", f"127.0.0.1:{port}") as second:
        other = Client(second.data, second.control, retries=0)
        other.generate(input_ids=[5, 6], session="a", sampling_params={"max_new_tokens": 4}, done=True)
        until(lambda: follower.log_step(2) or memory.records[-1].values["rows/total"] == 2)
        follower.stop()
    assert [record.values["rows/count"] for record in memory.records[:2]] == [1, 0]
    assert totals(memory)[0] == 2
