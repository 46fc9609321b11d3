# SPDX-License-Identifier: Apache-2.0
"""The adapters with the trackers' own packages; `make trackers` installs them, and elsewhere the tests are skipped."""

from __future__ import annotations

import importlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Demo

import tokentap.mlflow
import tokentap.tensorboard
import tokentap.wandb
from tokentap import Client
from tokentap._tracking import Follower, Record


def package(name: str) -> Any:
    """The package of a tracker, which must not be one of tokentap's modules; skips the test without it."""
    if not os.environ.get("TRACKERS"):
        pytest.importorskip(name)
    found = importlib.import_module(name)
    assert "tokentap" not in Path(found.__file__ or "").parts[-3:]
    return found


@pytest.fixture
def client(demo: Demo) -> Iterator[Client]:
    with Client(demo.data, demo.control, retries=0) as made:
        yield made


class Kept:
    """Keeps what a writer wrote."""

    def __init__(self, writer: Any) -> None:
        self.writer, self.background = writer, writer.background
        self.records: list[Record] = []

    def write(self, record: Record) -> None:
        self.writer.write(record)
        self.records.append(record)


def train(client: Client, session: str, follower: Follower, each: Callable[[int], None] = lambda step: None) -> Kept:
    """Three steps of two rows each, the policies 10, 11 and 12; returns what was written."""
    kept = Kept(follower._writer)
    follower._writer = kept
    with follower:
        for step in range(3):
            client.set_policy(10 + step)
            for at in range(2):
                name = f"{session}-{step}-{at}"
                client.generate(input_ids=[299, 467], session=name, sampling_params={"max_new_tokens": 4 + at})
                client.reward(name, step + at / 2)
                client.freeze(name)
            follower.log_step(step, version=11 + step)
            each(step)
    assert [record.step for record in kept.records] == [0, 1, 2]
    assert [record.values["reward/mean"] for record in kept.records] == [0.25, 1.25, 2.25]
    assert [record.values["staleness/mean"] for record in kept.records] == [1, 1, 1]
    assert [list(record.policies) for record in kept.records] == [[("version", 10 + step)] for step in range(3)]
    assert all(record.values["tokens/measured"] == 9 for record in kept.records)
    return kept


def latest(client: Client) -> str | None:
    lines = list(client.finished())
    return lines[-1]["cursor"] if lines else None


def points(kept: Kept, prefix: str) -> dict[str, list[tuple[int, float]]]:
    """What a tracker must have: name, then steps and values."""
    found: dict[str, list[tuple[int, float]]] = {}
    for record in kept.records:
        for name, value in record.values.items():
            found.setdefault(f"{prefix}/{name}", []).append((record.step, value))
        for (kind, number), values in record.policies.items():
            for name, value in values.items():
                found.setdefault(f"{prefix}/by_{kind}/{name}", []).append((number, value))
    return found


def test_tensorboard_files_have_every_number(client: Client, session: str, tmp_path: Path) -> None:
    writer = package("tensorboardX").SummaryWriter(str(tmp_path))
    kept = train(client, session, tokentap.tensorboard.follow(client, writer, since=latest(client)))
    writer.close()
    accumulator = package("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(tmp_path), size_guidance={"scalars": 0})
    events.Reload()
    expected = points(kept, "tokentap")
    assert set(events.Tags()["scalars"]) == set(expected)
    for name, written in expected.items():
        found = [(event.step, event.value) for event in events.Scalars(name)]
        # TensorBoard has float32
        assert [step for step, _ in found] == [step for step, _ in written]
        assert [value for _, value in found] == pytest.approx([value for _, value in written], rel=1e-6), name


def test_mlflow_runs_have_every_number_once(
    client: Client, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = package("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    mlflow.set_experiment("tokentap")
    with mlflow.start_run() as run:
        follower = tokentap.mlflow.follow(client, since=latest(client), prefix="rollouts")
        kept = train(client, session, follower, lambda step: mlflow.log_metric("loss", 1.0, step=step))
        # the reply of a write was lost
        kept.writer.write(kept.records[-1])
    store = mlflow.MlflowClient()
    expected = points(kept, "rollouts")
    assert set(store.get_run(run.info.run_id).data.metrics) == {*expected, "loss"}
    for name, written in expected.items():
        history = store.get_metric_history(run.info.run_id, name)
        assert sorted((metric.step, metric.value) for metric in history) == sorted(written), name
    with pytest.raises(ValueError, match="start_run"):
        tokentap.mlflow.follow(client)
    by_id = tokentap.mlflow.follow(client, run.info.run_id, since=latest(client))
    assert by_id._writer.run_id == run.info.run_id  # type: ignore[attr-defined]
    by_id.stop()


def test_an_mlflow_run_that_is_deleted_raises_nothing(
    client: Client, session: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = package("mlflow")
    monkeypatch.chdir(tmp_path)
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/runs.db")
    mlflow.set_experiment("deleted")
    with mlflow.start_run() as run:
        pass
    mlflow.delete_run(run.info.run_id)
    follower = tokentap.mlflow.follow(client, run.info.run_id, since=latest(client))
    follower.log_step(0)
    follower.stop()
    assert follower.pending == 1


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """The history of an offline run, from its file, which may be complete only after `finish()` has returned."""
    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    end = time.monotonic() + 20
    while True:
        records = records_of(path.read_bytes())
        if records and records[-1].WhichOneof("record_type") == "exit":
            break
        assert time.monotonic() < end, "the run is not complete"
        time.sleep(0.05)
    found: list[dict[str, Any]] = []
    for record in records:
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            found.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items})
    return found


def records_of(data: bytes) -> list[Any]:
    """The records of a file: protobuf in a log that has the form of LevelDB's."""
    kinds = package("wandb.proto.wandb_internal_pb2")
    assert data[:4] in (b":W&B", b"")
    found: list[Any] = []
    at, whole = 7, b""
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            # no header fits into the rest of a block
            at += 32768 - at % 32768
            continue
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        # whole, first, middle, last
        assert kind in (1, 2, 3, 4)
        if at + 7 + length > len(data):
            break
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record = kinds.Record()
            record.ParseFromString(whole)
            found.append(record)
            whole = b""
    return found


@pytest.mark.parametrize("trainer", ["explicit", "automatic", "ahead", "silent"])
def test_wandb_runs_have_every_number_and_lose_none_of_the_trainer(
    client: Client, session: str, tmp_path: Path, trainer: str
) -> None:
    wandb = package("wandb")
    run = wandb.init(project="p", dir=str(tmp_path), mode="offline")

    def log(step: int) -> None:
        if trainer == "explicit":
            run.log({"loss": step}, step=step)
        elif trainer == "automatic":
            run.log({"loss": step})
        elif trainer == "ahead":
            # several rows a step
            for _ in range(5):
                run.log({"loss": step})

    kept = train(client, session, tokentap.wandb.follow(client, since=latest(client)), log)
    run.log({"final": 1})
    run.finish()
    rows = rows_of(tmp_path)
    for record in kept.records:
        (row,) = [row for row in rows if row.get("tokentap/step") == record.step]
        for name, value in record.values.items():
            assert row[f"tokentap/{name}"] == pytest.approx(value, rel=1e-12), name
        (((kind, number), values),) = record.policies.items()
        assert row[f"tokentap/by_{kind}/{kind}"] == number
        assert row[f"tokentap/by_{kind}/reward/mean"] == values["reward/mean"]
    losses = [row["loss"] for row in rows if "loss" in row]
    expected = {"silent": [], "ahead": [0] * 5 + [1] * 5 + [2] * 5}.get(trainer, [0, 1, 2])
    assert losses == expected
    assert [row["final"] for row in rows if "final" in row] == [1]
    with pytest.raises(ValueError, match=r"wandb\.init"):
        tokentap.wandb.follow(client)


def test_a_disabled_wandb_run_is_followed(client: Client, session: str) -> None:
    run = package("wandb").init(mode="disabled")
    train(client, session, tokentap.wandb.follow(client, run, since=latest(client)))
    run.finish()


def test_a_finished_wandb_run_raises_nothing(client: Client, session: str, tmp_path: Path) -> None:
    run = package("wandb").init(project="p", dir=str(tmp_path), mode="offline")
    follower = tokentap.wandb.follow(client, run, since=latest(client))
    follower.log_step(0)
    run.finish()
    follower.log_step(1)
    follower.stop()
    assert follower.pending == 1
    assert len([row for row in rows_of(tmp_path) if "tokentap/step" in row]) == 1


def test_wandb_writes_the_oldest_policy_that_changed(tmp_path: Path) -> None:
    run = package("wandb").init(project="p", dir=str(tmp_path), mode="offline")
    writer = tokentap.wandb._Writer(run, "tokentap")
    for step, policies in enumerate([{3: 0.0, 4: 1.0}, {4: 2.0, 5: 3.0}, {}]):
        by_policy = {("epoch", number): {"reward/mean": mean} for number, mean in policies.items()}
        writer.write(Record(step, 0.0, {}, by_policy, None))
    run.finish()
    rows = rows_of(tmp_path)
    found = [(row["tokentap/by_epoch/epoch"], row["tokentap/by_epoch/reward/mean"]) for row in rows]
    assert found == [(3, 0.0), (4, 2.0), (5, 3.0)]
