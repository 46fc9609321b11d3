# SPDX-License-Identifier: Apache-2.0
"""Follows the finished paths of a tokentap and computes the numbers that `tokentap.wandb`, `tokentap.mlflow` and
`tokentap.tensorboard` write."""

from __future__ import annotations

import logging
import math
import re
import threading
import time
from array import array
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import Protocol

from . import _routes as routes
from ._client import Client
from ._errors import HttpError
from ._retry import Retry
from ._routes import Json

LOG = logging.getLogger("tokentap")

QUANTILES = (5, 25, 50, 75, 95)
"""Percentiles of the entropy."""

COUNTERS = (
    "tokentap_chat_drift_total",
    "tokentap_entropy_skipped_total",
    "tokentap_logprob_anomalies_total",
    "tokentap_uncaptured_generations_total",
)
"""The counters of `/metrics` that are logged."""

POLICIES = 64
"""Policies of a kind whose rewards are summed up; rows of older ones are in the numbers of their step only."""

REMEMBERED = 1_000_000
"""Rows that are recognized when they are listed again."""

Policy = tuple[str, int]
"""`version`, `weight_version` or `epoch`, and the number."""


class Distribution:
    """Entropies of tokens: an exact mean, and quantiles within 0.025 %, in bounded memory.

    A value is counted by the sign-less upper 19 bits of its float32: exponent and 11 bits of the mantissa.
    """

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.bins: Counter[int] = Counter()

    def add(self, values: Sequence[float]) -> None:
        """Adds the values, which are not negative."""
        self.count += len(values)
        self.total += math.fsum(values)
        bits = memoryview(array("f", values)).cast("B").cast("I")
        self.bins.update([(one & 0x7FFF_FFFF) >> 12 for one in bits])

    @property
    def mean(self) -> float:
        return self.total / self.count

    def quantiles(self, percentiles: Sequence[int]) -> list[float]:
        """For each percentile, in rising order, the smallest value that has that share of the values up to it."""
        found: list[float] = []
        seen = 0
        for key, count in sorted(self.bins.items()):
            seen += count
            while len(found) < len(percentiles) and seen * 100 >= percentiles[len(found)] * self.count:
                found.append(_middle(key))
        return found


def _middle(key: int) -> float:
    """The middle of a bin."""
    if key == 0:
        return 0.0
    return memoryview(array("I", [key << 12 | 0x800])).cast("B").cast("f")[0]


def reward_of(value: object) -> float | None:
    """The reward as a number: itself, or `reward` or `score` of an object; None without one."""
    for one in (value, *([value.get("reward"), value.get("score")] if isinstance(value, Mapping) else [])):
        if isinstance(one, (int, float)) and not isinstance(one, bool) and math.isfinite(one):
            return float(one)
    return None


def number_of(label: object) -> int | None:
    """A label that is an integer, else None."""
    text = str(label)
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else None


def policy_of(span: Json) -> Policy | None:
    """The number of a span's policy: the trainer's `version`, else the engine's `weight_version`, else the epoch.

    Of a span with an adapter it is the number of the adapter: its `adapter_version`, else its epoch. None if the
    policy is uncertain, or if only the epoch is known and it is of one process of several.
    """
    if span.get("until", span["epoch"]) != span["epoch"]:
        return None
    if span.get("adapter") is not None:
        epoch = span["adapter_epoch"]
        if span.get("adapter_until", epoch) != epoch:
            return None
        number = number_of(span.get("adapter_version"))
        if number is not None:
            return "version", number
        return ("epoch", epoch) if span.get("process") is None else None
    for kind in ("version", "weight_version"):
        number = number_of(span.get(kind))
        if number is not None:
            return kind, number
    return ("epoch", span["epoch"]) if span.get("process") is None else None


@dataclass(frozen=True)
class Row:
    """What is logged of a finished path. Tokens are those that are trained in it: each is in one row."""

    key: str | None
    # Names of `rows/...` that count this row.
    counted: list[str]
    trained: int
    # Entropies by estimator.
    entropies: dict[str, list[float]]
    reward: float | None
    # Trained tokens by policy.
    tokens: dict[Policy, int]
    # The policy of all trained tokens, if it is one and has a number.
    policy: Policy | None

    @classmethod
    def of(cls, line: Json) -> Row:
        """The row of a line of `GET /v1/trajectories`; raises LookupError, TypeError or ValueError for another line."""
        mask, entropy = line["loss_mask"], line["entropy"]
        turns = {turn["id"]: turn for turn in line["turns"]}
        entropies: dict[str, list[float]] = {}
        for segment in line["segments"]:
            start, end = segment["start"], segment["end"]
            pairs = zip(mask[start:end], entropy[start:end], strict=True)
            measured = [float(nats) for trained, nats in pairs if trained and nats is not None and nats >= 0]
            if measured:
                about = turns[segment["turn"]].get("measured") or {}
                entropies.setdefault(about.get("estimator") or "unknown", []).extend(measured)
        trained = sum(mask)
        tokens: dict[Policy, int] = {}
        for span in line["policy"]:
            policy, count = policy_of(span), sum(mask[span["start"] : span["end"]])
            if policy is not None and count:
                tokens[policy] = tokens.get(policy, 0) + count
        whole = next(iter(tokens)) if len(tokens) == 1 and sum(tokens.values()) == trained else None
        flags, last = line["flags"], line["turns"][-1]
        counted = [flag for flag in FLAGS if flag in flags]
        status = _status(last.get("fault"), line["finish_reason"])
        counted += [] if status is None else [status]
        return cls(line.get("row_key"), counted, trained, entropies, reward_of(line["reward"]), tokens, whole)


def _status(fault: str | None, finish: str | None) -> str | None:
    """How a row ended, as in exports; None if it is complete."""
    if fault in ("aborted", "disconnected", "broken") or finish == "abort":
        return "aborted"
    if finish is None or fault not in (None, "forwarded"):
        return "failed"
    return "truncated" if finish == "length" else None


FLAGS = ("incomplete", "crosses_versions", "policy_uncertain", "mixed_adapters")
"""The flags of rows that are counted."""

ROWS = ("truncated", "aborted", "failed", *FLAGS)
"""What is counted of rows, as `rows/...`."""

PATHS = ("gone", "refused", "missed", "missed_unknown", "repeated", "unreadable", "store_changes")
"""What is counted of other lines, as `paths/...`."""


@dataclass
class Sums:
    """Sums over rows."""

    rows: int = 0
    rewarded: int = 0
    reward_total: float = 0.0
    least_reward: float = math.inf
    largest_reward: float = -math.inf
    entropies: dict[str, Distribution] = field(default_factory=dict)

    def add(self, row: Row) -> None:
        self.rows += 1
        if row.reward is not None:
            self.rewarded += 1
            self.reward_total += row.reward
            self.least_reward = min(self.least_reward, row.reward)
            self.largest_reward = max(self.largest_reward, row.reward)
        for estimator, values in row.entropies.items():
            self.entropies.setdefault(estimator, Distribution()).add(values)

    def values(self) -> dict[str, float]:
        """Rewards and entropies; names without a number are absent."""
        made: dict[str, float] = {"reward/rows": self.rewarded}
        if self.rewarded:
            made["reward/mean"] = self.reward_total / self.rewarded
            made |= {"reward/min": self.least_reward, "reward/max": self.largest_reward}
        for estimator, entropies in self.entropies.items():
            prefix = f"entropy/{estimator}"
            made |= {f"{prefix}/tokens": entropies.count, f"{prefix}/mean": entropies.mean}
            for percent, value in zip(QUANTILES, entropies.quantiles(QUANTILES), strict=True):
                made[f"{prefix}/p{percent:02}"] = value
        return made


@dataclass
class Window:
    """The rows since the last record."""

    sums: Sums = field(default_factory=Sums)
    counted: Counter[str] = field(default_factory=Counter)
    trained: int = 0
    # Lines that are not rows.
    paths: Counter[str] = field(default_factory=Counter)
    # Trained tokens by the trainer's label of the policy.
    labelled: Counter[int] = field(default_factory=Counter)
    # Policies with a new row.
    policies: set[Policy] = field(default_factory=set)

    def values(self, version: int | None) -> dict[str, float]:
        """The numbers by their names; `version` is the policy that staleness is compared with."""
        made: dict[str, float] = {"rows/count": self.sums.rows}
        made |= {f"rows/{name}": self.counted[name] for name in ROWS}
        made |= {f"paths/{name}": self.paths[name] for name in PATHS}
        measured = sum(entropies.count for entropies in self.sums.entropies.values())
        made |= {"tokens/trained": self.trained, "tokens/measured": measured}
        made |= self.sums.values()
        if version is not None and self.labelled:
            tokens = self.labelled.total()
            late = sum((version - number) * count for number, count in self.labelled.items())
            made |= {"staleness/mean": late / tokens, "staleness/max": version - min(self.labelled)}
            made["staleness/tokens"] = tokens
        return made


@dataclass(frozen=True)
class Record:
    """What is written for one step."""

    step: int
    # Seconds since 1970. It is the same in each attempt to write.
    time: float
    values: dict[str, float]
    # The policies that have a new row: all of their rows until now.
    policies: dict[Policy, dict[str, float]]
    # The position after the last row of this record and of those before.
    cursor: str | None
    # The rows after the last step of the trainer: the step is not one of the trainer's.
    is_rest: bool = False


class Writer(Protocol):
    """Writes records to a tracker."""

    # Whether the follower's own thread writes; otherwise `log_step` does.
    background: bool

    def write(self, record: Record) -> None:
        """Writes a record; raises any error to get it again."""


class Rows:
    """All rows since the start, each counted once."""

    def __init__(self) -> None:
        self.window = Window()
        self.total = 0
        self._seen: dict[str, None] = {}
        self._policies: dict[str, dict[int, Sums]] = {}
        # The largest number of each kind that is not summed up any more.
        self._forgotten: dict[str, int] = {}
        self._has_epochs = True

    def add(self, row: Row) -> None:
        """Counts a row, unless it was listed before."""
        window = self.window
        if row.key is not None:
            if row.key in self._seen:
                window.paths["repeated"] += 1
                return
            self._seen[row.key] = None
            if len(self._seen) > REMEMBERED:
                del self._seen[next(iter(self._seen))]
        self.total += 1
        window.sums.add(row)
        window.counted.update(row.counted)
        window.trained += row.trained
        for (kind, number), tokens in row.tokens.items():
            if kind != "epoch":
                window.labelled[number] += tokens
        if row.policy is not None:
            self._add_policy(row.policy, row)

    def _add_policy(self, policy: Policy, row: Row) -> None:
        kind, number = policy
        known = self._policies.setdefault(kind, {})
        if (kind == "epoch" and not self._has_epochs) or number <= self._forgotten.get(kind, number - 1):
            return
        known.setdefault(number, Sums()).add(row)
        self.window.policies.add(policy)
        if len(known) > POLICIES:
            oldest = min(known)
            del known[oldest]
            self._forgotten[kind] = oldest
            self.window.policies.discard((kind, oldest))

    def add_other(self, line: Json) -> None:
        """Counts a line that is not a row."""
        paths = self.window.paths
        if "gone" in line:
            paths["gone"] += 1
        elif "refused" in line:
            paths["refused"] += 1
        elif line.get("missed") is not None:
            paths["missed"] += line["missed"]
        elif "missed" in line:
            paths["missed_unknown"] += 1
        else:
            paths["unreadable"] += 1

    def change_store(self) -> None:
        """Another tokentap answers: its epochs are not those of the former one."""
        self.window.paths["store_changes"] += 1
        self._has_epochs = False
        self._policies.pop("epoch", None)
        self.window.policies = {policy for policy in self.window.policies if policy[0] != "epoch"}

    def take(self, version: int | None) -> tuple[dict[str, float], dict[Policy, dict[str, float]]]:
        """The numbers of the window, which begins again, and those of the policies with a new row."""
        window, self.window = self.window, Window()
        values = window.values(version) | {"rows/total": self.total}
        policies: dict[Policy, dict[str, float]] = {}
        for kind, number in sorted(window.policies):
            sums = self._policies[kind][number]
            policies[kind, number] = {"rows": sums.rows, **sums.values()}
        return values, policies


class Increases:
    """How far counters of `/metrics` rose since the first reading; one that a restart reset continues."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = frozenset(names)
        self._last: dict[str, float] | None = None
        self.values: dict[str, float] = {}

    def read(self, text: str) -> None:
        """Adds a reading."""
        now = dict(self._series(text))
        if self._last is not None:
            for name, value in now.items():
                before = self._last.get(name, 0.0)
                self.values[name] = self.values.get(name, 0.0) + (value - before if value >= before else value)
        else:
            self.values = dict.fromkeys(now, 0.0)
        self._last = {**(self._last or {}), **now}

    def _series(self, text: str) -> Iterable[tuple[str, float]]:
        for line in text.splitlines():
            found = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if found and found[1] in self.names:
                labels = re.findall(r'\w+="((?:[^"\\]|\\.)*)"', found[2] or "")
                parts = [found[1].removeprefix("tokentap_"), *(re.sub(r"[^\w.-]+", "_", label) for label in labels)]
                yield "counters/" + "/".join(part for part in parts if part), float(found[3])


class Follower:
    """Reads finished paths in a thread and writes their numbers to a tracker; ends with `stop()` or `with`.

    The trainer calls `log_step` at each step. It reads what finished until then, for at most `wait` seconds. With
    `every` a record is written each time that many seconds have passed instead, and its step is the number of rows
    until then.

    Nothing is raised into the training loop: a failure is logged and repeated, and rows that could not be read or
    written are in a later record, or are written later. `strict` raises it from `log_step` and `stop`.

    `since` is a cursor to start after; without one all finished paths that tokentap knows are read. `cursor` is the one
    to save with the trainer's state: the position after the rows that were written.
    """

    def __init__(
        self,
        client: Client,
        writer: Writer,
        *,
        since: str | None = None,
        every: float | None = None,
        interval: float = 2.0,
        wait: float = 5.0,
        limit: int = 100,
        counters: Iterable[str] = COUNTERS,
        strict: bool = False,
    ) -> None:
        if not isinstance(client, Client):
            raise ValueError(f"a follower reads in a thread and needs a tokentap.Client, not {type(client).__name__}")
        if interval <= 0 or (every is not None and every <= 0) or limit < 1:
            raise ValueError("interval, every and limit must be more than 0")
        self.cursor = since
        self._client, self._writer, self._strict = client, writer, strict
        self._every, self._interval, self._wait, self._limit = every, interval, wait, limit
        self._since = since
        self._rows, self._increases = Rows(), Increases(counters)
        self._records: deque[Record] = deque()
        self._step = -1
        # Guards everything above that changes, and the following; never held during a request or a write.
        self._changed = threading.Condition()
        self._writing = threading.Lock()
        self._asked = self._answered = 0
        self._is_current = False
        self._ends = self._gives_up = False
        self._errors: dict[str, Exception] = {}
        self._due = time.monotonic() + (every or 0.0)
        self._thread = threading.Thread(target=self._run, name="tokentap-follower", daemon=True)
        self._thread.start()

    def __enter__(self) -> Follower:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def pending(self) -> int:
        """Records that could not be written yet."""
        return len(self._records)

    def log_step(self, step: int, version: int | str | None = None) -> None:
        """Writes what finished since the last call as `step`.

        `version` is the policy that is trained or served now, in the numbers of `set_policy` or of the engine's
        `weight_version`; with it the staleness of the tokens is logged.
        """
        if self._every is not None:
            raise ValueError("log_step writes each step, and every= writes without steps: use one of them")
        if self._ends:
            LOG.warning("tokentap: step %s is not logged, because the follower was stopped", step)
            return
        try:
            self._catch_up(self._wait)
            self._close(int(step), None if version is None else number_of(version))
            if self._writer.background:
                self._wake()
            else:
                self._write()
            self._succeeded("logging a step")
        except Exception as error:
            self._failed("logging a step", error)
        self._raise()

    def stop(self, timeout: float = 30.0) -> None:
        """Reads and writes what is left, for at most `timeout` seconds, and ends the thread.

        Rows after the last step are written as the next one. A second call writes what could not be written before.
        """
        with self._changed:
            self._ends = True
            self._changed.notify_all()
        self._thread.join(timeout)
        with self._changed:
            self._gives_up = True
        if self._thread.is_alive():
            LOG.warning("tokentap: the finished paths could not all be read and written within %s s", timeout)
        self._close_rest()
        self._write()
        if self._records:
            LOG.error("tokentap: %s records were not written; stop() tries again", len(self._records))
        self._raise()

    def _catch_up(self, seconds: float) -> None:
        """Waits until the thread has read what finished before this call, or failed to."""
        with self._changed:
            self._asked += 1
            ticket = self._asked
            self._is_current = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._answered >= ticket or not self._thread.is_alive(), seconds)
            if self._answered < ticket:
                self._is_current = False

    def _wake(self) -> None:
        with self._changed:
            self._asked += 1
            self._changed.notify_all()

    def _run(self) -> None:
        wait = self._interval
        # with every=, no other thread writes
        writes = self._writer.background or self._every is not None
        while True:
            with self._changed:
                ticket, ends = self._asked, self._ends
            self._read_counters()
            succeeded = self._read_rows()
            with self._changed:
                self._answered, self._is_current = ticket, succeeded
                self._changed.notify_all()
            if self._every is not None and time.monotonic() >= self._due:
                self._due = time.monotonic() + self._every
                self._close(self._rows.total, None)
            if ends:
                self._close_rest()
            if writes and not self._write():
                succeeded = False
            if ends:
                return
            wait = self._interval if succeeded else min(wait * 2, 60.0)
            with self._changed:
                seconds = wait if self._every is None else min(wait, max(self._due - time.monotonic(), 0.0))
                if self._asked == ticket and not self._ends:
                    self._changed.wait(seconds)

    def _read_counters(self) -> bool:
        """Reads `/metrics`; returns whether that succeeded."""
        try:
            text = self._client._send(routes.metrics(), Retry(0))
            with self._changed:
                self._increases.read(text)
        except Exception as error:
            return self._failed("reading metrics", error)
        return self._succeeded("reading metrics")

    def _read_rows(self) -> bool:
        """Reads every finished path; returns whether that succeeded."""
        try:
            while not self._gives_up:
                try:
                    lines = self._client._send(routes.finished(self._since, self._limit), Retry(0))
                except HttpError as error:
                    if error.code != "other_store" or self._since is None:
                        raise
                    LOG.warning("tokentap: the cursor belongs to another store; reading again from its beginning")
                    with self._changed:
                        self._since = None
                        self._rows.change_store()
                    continue
                # {"missed": null} alone comes again before the next path
                if not lines or "cursor" not in lines[-1]:
                    break
                self._add(lines)
        except Exception as error:
            return self._failed("reading finished paths", error)
        return self._succeeded("reading finished paths")

    def _add(self, lines: list[Json]) -> None:
        """Counts the lines of a reply and moves the cursor after them, both or neither."""
        cursor = lines[-1]["cursor"]
        rows: list[Row | Json] = []
        for line in lines:
            try:
                rows.append(Row.of(line) if "token_ids" in line else line)
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                LOG.warning("tokentap: a finished path is not readable: %r", error)
                rows.append({})
        with self._changed:
            for row in rows:
                if isinstance(row, Row):
                    self._rows.add(row)
                else:
                    self._rows.add_other(row)
            self._since = cursor

    def _close(self, step: int, version: int | None, is_rest: bool = False) -> None:
        """Makes a record of the rows since the last one."""
        with self._changed:
            values, policies = self._rows.take(version)
            values |= self._increases.values
            # rows that finished before this step may be in the next one
            values["follower/behind"] = float(not self._is_current)
            self._step = max(step, self._step)
            self._records.append(Record(step, time.time(), values, policies, self._since, is_rest))

    def _close_rest(self) -> None:
        """Makes a record of the rows that no step has."""
        with self._changed:
            window = self._rows.window
            if window.sums.rows or window.paths:
                is_rest = self._every is None
                self._close(self._step + 1 if is_rest else self._rows.total, None, is_rest)

    def _write(self) -> bool:
        """Writes the records in their order; one that fails stays with those after it."""
        # while another thread writes, it also writes what was added
        if not self._writing.acquire(blocking=False):
            return True
        try:
            while self._records:
                record = self._records[0]
                try:
                    self._writer.write(record)
                except Exception as error:
                    return self._failed("writing to the tracker", error)
                with self._changed:
                    self._records.popleft()
                    self.cursor = record.cursor
        finally:
            self._writing.release()
        return self._succeeded("writing to the tracker")

    def _failed(self, what: str, error: Exception) -> bool:
        if str(error) != str(self._errors.get(what)):
            LOG.warning("tokentap: %s failed and is repeated: %s", what, error)
        self._errors[what] = error
        return False

    def _succeeded(self, what: str) -> bool:
        if self._errors.pop(what, None) is not None:
            LOG.info("tokentap: %s succeeded again", what)
        return True

    def _raise(self) -> None:
        if self._strict:
            for error in list(self._errors.values()):
                raise error
