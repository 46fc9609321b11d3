# SPDX-License-Identifier: Apache-2.0
"""Logs the numbers of finished paths to Weights & Biases."""

from __future__ import annotations

import importlib
import logging
from typing import Any

from ._client import Client
from ._tracking import Follower, Policy, Record

__all__ = ["Follower", "follow"]

_LOG = logging.getLogger(__name__)

_KINDS = ("version", "weight_version", "epoch")

# One pattern for each, because a name that two patterns match has the axis of either.
_GROUPS = ("rows", "paths", "tokens", "entropy", "reward", "staleness", "counters", "follower")


# Policies that wait at most.
_MOST_WAITING = 1000


class _Writer:
    """Writes records to a run. It never makes the run's step larger than the trainer's; `every=` is for no trainer.

    W&B drops what is logged for an earlier step than that of the run, so such numbers are in the run's current step;
    the charts use `tokentap/step`.
    """

    # in the trainer's thread, between its own steps
    background = False

    def __init__(self, run: Any, prefix: str) -> None:
        self.run, self.prefix = run, prefix
        # Policies that are not written yet: a step of a run has one number of each name.
        self.policies: dict[Policy, dict[str, float]] = {}
        run.define_metric(f"{prefix}/step")
        for group in _GROUPS:
            run.define_metric(f"{prefix}/{group}/*", step_metric=f"{prefix}/step")
        for kind in _KINDS:
            run.define_metric(f"{prefix}/by_{kind}/{kind}")
            run.define_metric(f"{prefix}/by_{kind}/*", step_metric=f"{prefix}/by_{kind}/{kind}")

    def write(self, record: Record) -> None:
        """Logs a record, with the oldest policy that has new rows."""
        waiting = self.policies | record.policies
        values = {f"{self.prefix}/{name}": value for name, value in record.values.items()}
        values[f"{self.prefix}/step"] = record.step
        for kind in _KINDS:
            numbers = [number for of, number in waiting if of == kind]
            if numbers:
                prefix, number = f"{self.prefix}/by_{kind}", min(numbers)
                values[f"{prefix}/{kind}"] = number
                values |= {f"{prefix}/{name}": value for name, value in waiting.pop((kind, number)).items()}
        # raises for a finished run, whose step W&B would wait for 30 s
        self.run.log({}, commit=False)
        now = self.run.step or 0
        self.run.log(values, step=now if record.is_rest else max(record.step, now))
        dropped = sorted(waiting, key=lambda policy: policy[1])[: max(0, len(waiting) - _MOST_WAITING)]
        for policy in dropped:
            del waiting[policy]
        if dropped:
            _LOG.warning("tokentap: %d policies are not logged: a record has one of them", len(dropped))
        self.policies = waiting


def follow(client: Client, run: Any = None, *, prefix: str = "tokentap", **options: Any) -> Follower:
    """Follows a tokentap and logs to `run`, the current run by default; `options` are those of `Follower`."""
    if run is None:
        # a type checker would take this module for the package
        wandb: Any = importlib.import_module("wandb")

        run = wandb.run
        if run is None:
            raise ValueError("there is no current run: call wandb.init() first, or pass a run")
    return Follower(client, _Writer(run, prefix), **options)
