# SPDX-License-Identifier: Apache-2.0
"""Logs the numbers of finished paths to TensorBoard."""

from __future__ import annotations

from typing import Any

from ._client import Client
from ._tracking import Follower, Record

__all__ = ["Follower", "follow"]


class _Writer:
    """Writes records with the `SummaryWriter` of torch or of tensorboardX."""

    background = True

    def __init__(self, writer: Any, prefix: str) -> None:
        self.writer, self.prefix = writer, prefix

    def write(self, record: Record) -> None:
        """Writes a record; the step of the numbers of a policy is its number."""
        for name, value in record.values.items():
            self.writer.add_scalar(f"{self.prefix}/{name}", value, record.step, walltime=record.time)
        for (kind, number), values in record.policies.items():
            for name, value in values.items():
                self.writer.add_scalar(f"{self.prefix}/by_{kind}/{name}", value, number, walltime=record.time)
        self.writer.flush()


def follow(client: Client, writer: Any, *, prefix: str = "tokentap", **options: Any) -> Follower:
    """Follows a tokentap and logs with `writer`, a `SummaryWriter`; `options` are those of `Follower`."""
    return Follower(client, _Writer(writer, prefix), **options)
