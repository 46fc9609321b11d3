# SPDX-License-Identifier: Apache-2.0
"""Logs the numbers of finished paths to MLflow."""

from __future__ import annotations

import importlib
from typing import Any

from ._client import Client
from ._tracking import Follower, Record

__all__ = ["Follower", "follow"]

_AT_ONCE = 1000
"""Numbers that MLflow takes in one request."""


class _Writer:
    """Writes records to a run. A repeated write has the same times, so that MLflow has each number once."""

    background = True

    def __init__(self, client: Any, run_id: str, prefix: str) -> None:
        self.client, self.run_id, self.prefix = client, run_id, prefix

    def write(self, record: Record) -> None:
        """Logs a record; the step of the numbers of a policy is its number."""
        from mlflow.entities import Metric

        at = int(record.time * 1000)
        metrics = [Metric(f"{self.prefix}/{name}", value, at, record.step) for name, value in record.values.items()]
        for (kind, number), values in record.policies.items():
            prefix = f"{self.prefix}/by_{kind}"
            metrics += [Metric(f"{prefix}/{name}", value, at, number) for name, value in values.items()]
        for start in range(0, len(metrics), _AT_ONCE):
            self.client.log_batch(self.run_id, metrics=metrics[start : start + _AT_ONCE], synchronous=True)


def follow(client: Client, run: Any = None, *, prefix: str = "tokentap", **options: Any) -> Follower:
    """Follows a tokentap and logs to `run`, a run or its id, the active run by default.

    `options` are those of `Follower`. The tracking URI is that of this call.
    """
    # a type checker would take this module for the package
    mlflow: Any = importlib.import_module("mlflow")

    if run is None:
        run = mlflow.active_run()
        if run is None:
            raise ValueError("there is no active run: call mlflow.start_run() first, or pass a run")
    run_id = run if isinstance(run, str) else run.info.run_id
    return Follower(client, _Writer(mlflow.MlflowClient(mlflow.get_tracking_uri()), run_id, prefix), **options)
