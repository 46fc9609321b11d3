# SPDX-License-Identifier: Apache-2.0
"""An adapter for TransferQueue: puts finished trajectories into the queue, each under its key."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import quote

from . import _routes as routes
from ._client import Client

__all__ = ["Fed", "Feeder", "Queue"]

_Fields = dict[str, Any]
_Tag = dict[str, Any]

_LOG = logging.getLogger("tokentap")

# The partition that holds the cursors, apart from the rows.
_CURSORS = "tokentap"

_INTEGERS = ("prompts", "responses", "response_mask", "loss_mask", "input_ids", "position_ids")
_FLOATS = ("rollout_log_probs", "rollout_entropy", "rm_scores")

_ROW_KEY_DIGITS = 39
"""Decimal digits of the 128 bits of a row key, the end of each key."""


class Queue(Protocol):
    """What a `Feeder` needs of its queue; by default it uses TransferQueue's own functions."""

    def put(self, partition: str, keys: list[str], rows: list[_Fields], tags: list[_Tag]) -> None:
        """Stores the rows, which have the same fields, and after them their tags."""

    def tag(self, partition: str, key: str, tag: _Tag) -> None:
        """Stores a tag without a row."""

    def tags(self, partition: str) -> dict[str, _Tag]:
        """The tags of all keys of a partition; empty if the partition does not exist."""
        ...


class _TransferQueue:
    """The queue of this process; call `transfer_queue.init()` first."""

    def put(self, partition: str, keys: list[str], rows: list[_Fields], tags: list[_Tag]) -> None:
        """`kv_batch_put`. It stores the tags after the fields, so a key with its tag has its fields."""
        import transfer_queue

        transfer_queue.kv_batch_put(keys=keys, partition_id=partition, fields=_columns(rows), tags=tags)  # pyright: ignore

    def tag(self, partition: str, key: str, tag: _Tag) -> None:
        """`kv_put` without fields."""
        import transfer_queue

        transfer_queue.kv_put(key=key, partition_id=partition, tag=tag)  # pyright: ignore

    def tags(self, partition: str) -> dict[str, _Tag]:
        """`kv_list`."""
        import transfer_queue

        listed: dict[str, dict[str, _Tag]] = transfer_queue.kv_list(partition_id=partition) or {}  # pyright: ignore
        return listed.get(partition, {})


@dataclass
class Fed:
    """What a call of `Feeder.feed` did; the numbers count paths."""

    # Put into the queue.
    put: int = 0
    # Already in the queue: put before an earlier feeder could commit its cursor, or listed again by a shared ledger.
    present: int = 0
    # Put, and counted in `put` as well, but the queue has another path with this session, version and leaf: the session
    # was deleted and its name used again, or a failover of a shared ledger changed the numbers of turns. Logged.
    conflicts: int = 0
    # Not put, by reason.
    refused: Counter[str] = field(default_factory=Counter)
    # Evicted, deleted or not readable when they were to be read.
    gone: int = 0
    # No longer known to tokentap; None: an unknown number.
    missed: int | None = 0


@dataclass
class Feeder:
    """Reads the finished paths of one tokentap and puts each into the queue, in the form of verl's newer trainer.

    The cursor is stored in the queue, after the rows: a feeder that restarts continues there. A path whose `row_key`
    the queue has in a tag is skipped, so what a trainer has written into its row is not overwritten. `annotate` returns
    more fields and tags for a path, such as those of the dataset; all paths need the same names. Only one feeder may
    read a tokentap.
    """

    client: Client
    # Names the tokentap in the queue: its cursor is stored under this name.
    source: str
    partition: str = "train"
    annotate: Callable[[Mapping[str, Any]], tuple[_Fields, _Tag]] | None = None
    # Paths of a page; the cursor is committed after each page.
    limit: int = 256
    queue: Queue = field(default_factory=_TransferQueue)

    def feed(self) -> Fed:
        """Puts the paths that finished since the last call, and returns what it did.

        Raises `HttpError` with the code `other_store` if the cursor belongs to another store; after `forget` all paths
        are read again.
        """
        fed, client = Fed(), self.client._for_trainers()
        since = self.queue.tags(_CURSORS).get(self.source, {}).get("cursor")
        while lines := client._send(routes.finished(since, self.limit)):
            self._put(lines, fed)
            cursor = lines[-1].get("cursor", since)
            if cursor == since:
                break
            since = cursor
            self.queue.tag(_CURSORS, self.source, {"cursor": since})
        return fed

    def forget(self) -> None:
        """Forgets the cursor, so that the next `feed` reads all paths."""
        self.queue.tag(_CURSORS, self.source, {"cursor": None})

    def _put(self, lines: Sequence[Mapping[str, Any]], fed: Fed) -> None:
        stored = self.queue.tags(self.partition)
        ours = {key: tag["tokentap_row_key"] for key, tag in stored.items() if "tokentap_row_key" in tag}
        present, places = set(ours.values()), {_place_of(key) for key in ours}
        batches: dict[frozenset[str], tuple[list[str], list[_Fields], list[_Tag]]] = {}
        for line in lines:
            missed = line.get("missed", 0)
            fed.missed = None if missed is None or fed.missed is None else fed.missed + missed
            fed.gone += "gone" in line
            reason = line.get("refused") or (_refusal(line) if "token_ids" in line else None)
            if reason:
                fed.refused[reason] += 1
            if reason or "token_ids" not in line:
                continue
            key, row_key = _key_of(line), line["row_key"]
            if row_key in present or key in stored:
                fed.present += 1
                continue
            place = _place_of(key)
            if place in places:
                fed.conflicts += 1
                _LOG.warning("partition %r has another path at %s; %s is put as well", self.partition, place, row_key)
            present.add(row_key)
            places.add(place)
            row, tag = _row_of(line)
            fields, tags = self.annotate(line) if self.annotate else ({}, {})
            row |= fields
            # a column has a value in every row, and not every row has a reward
            keys, rows, row_tags = batches.setdefault(frozenset(row), ([], [], []))
            keys.append(key)
            rows.append(row)
            row_tags.append({**tag, **tags})
        for batch in batches.values():
            self.queue.put(self.partition, *batch)
            fed.put += len(batch[0])


def _key_of(path: Mapping[str, Any]) -> str:
    """`{uid}_{sample}.{version}_{leaf}{row_key}`, verl's form `{uid}_{session_id}_{index}`.

    verl reads the index as an integer, and takes the row with the largest one as the last output of its sample. The row
    key is therefore in decimal digits, after the leaf. It makes the keys of different paths differ, also if a session's
    name is used again or a failover gives a turn the number of another.

    A session `{uid}_{sample}` is a sample of the group `uid`; another session is a group of one. Other underscores are
    quoted, because verl splits keys there.
    """
    uid, _, sample = path["session"].rpartition("_")
    if not uid:
        # no session's name has this character, so the key differs from that of `{name}_0`
        uid, sample = path["session"], "%"
    group = quote(uid, safe="").replace("_", "%5F")
    return f"{group}_{sample}.{path['version']}_{path['leaf']}{int(path['row_key'], 16):0{_ROW_KEY_DIGITS}}"


def _place_of(key: str) -> str:
    """The key without the row key: the session, the version and the leaf."""
    return key[:-_ROW_KEY_DIGITS]


def _refusal(path: Mapping[str, Any]) -> str | None:
    """Why a path cannot be trained; the reasons are those of an export."""
    if path.get("images"):
        # verl's rows have no pictures, and a trainer would compute other logprobs from the ids alone
        return "images_unsupported"
    trained = [at for at, bit in enumerate(path["loss_mask"]) if bit]
    if not trained:
        return "no_trained_tokens"
    if _prompt_length(path) == 0:
        return "no_prompt"
    for name, reason in (("logprobs", "missing_logprobs"), ("entropy", "missing_entropy")):
        if path[name] is None or any(path[name][at] is None for at in trained):
            return reason
    return None


def _prompt_length(path: Mapping[str, Any]) -> int:
    """The number of tokens before the first sampled one."""
    starts: list[int] = [each["start"] for each in path["segments"] if each["kind"] == "response"]
    return min(starts, default=len(path["token_ids"]))


def _scores_of(path: Mapping[str, Any], at: int) -> list[float] | None:
    """The rewards of the path and of its turns at their last tokens, from token `at` on; None without a reward.

    Also None if one of them is not a number: the others alone would be another score."""
    rewards = {turn["id"]: turn["reward"] for turn in path["turns"] if turn.get("reward") is not None}
    ends = {segment["turn"]: segment["end"] for segment in path["segments"]} if rewards else {}
    placed = [(ends.get(turn, at), reward) for turn, reward in rewards.items()]
    if path["reward"] is not None:
        placed.append((len(path["token_ids"]), path["reward"]))
    if not placed or any(isinstance(reward, bool) or not isinstance(reward, (int, float)) for _, reward in placed):
        return None
    scores = [0.0] * (len(path["token_ids"]) - at)
    for end, reward in placed:
        scores[max(end - at, 1) - 1] += reward
    return scores


def _row_of(path: Mapping[str, Any]) -> tuple[_Fields, _Tag]:
    """The fields and the tag of a path, as lists and numbers."""
    ids, mask, at = path["token_ids"], path["loss_mask"], _prompt_length(path)
    masked = mask[at:]

    def trained(values: Sequence[float | None]) -> list[float]:
        pairs = zip(values[at:], masked, strict=True)
        return [value if bit and value is not None else 0.0 for value, bit in pairs]

    first, last = _steps(path["policy"])
    row: _Fields = {
        "uid": _key_of(path).split("_")[0],
        "prompts": ids[:at],
        "responses": ids[at:],
        "response_mask": masked,
        "loss_mask": masked,
        "input_ids": ids,
        "position_ids": list(range(len(ids))),
        "rollout_log_probs": trained(path["logprobs"]),
        "rollout_entropy": trained(path["entropy"]),
        "multi_modal_inputs": {},
        "num_turns": len(path["turns"]),
        "extra_fields": {
            "tokentap_session": path["session"],
            "tokentap_version": path["version"],
            "tokentap_leaf": path["leaf"],
            "tokentap_row_key": path["row_key"],
            "tokentap_flags": path["flags"],
            "tokentap_policy": path["policy"],
            "tokentap_reward": path["reward"],
            "min_global_steps": first,
            "max_global_steps": last,
        },
    }
    scores = _scores_of(path, at)
    if scores is not None:
        row["rm_scores"] = scores
    tag = {
        "status": "success",
        "prompt_len": at,
        "response_len": len(masked),
        "seq_len": len(ids),
        "min_global_steps": first,
        "max_global_steps": last,
        "tokentap_row_key": path["row_key"],
    }
    return row, tag


def _steps(policy: Sequence[Mapping[str, Any]]) -> tuple[int | None, int | None]:
    """The first and the last trainer step that sampled; None for both unless all spans name one.

    A step is the version that the trainer named, else the engine's weight_version, if it is an integer. Of a span with
    an adapter it is the version of the adapter; spans of several adapters have no steps.
    """
    found = []
    if len({span.get("adapter") for span in policy}) > 1:
        return None, None
    for span in policy:
        name = span["version"] if span["version"] is not None else span["weight_version"]
        uncertain = span.get("until") not in (None, span["epoch"])
        if span.get("adapter") is not None:
            name = span["adapter_version"]
            uncertain = uncertain or span.get("adapter_until") not in (None, span["adapter_epoch"])
        if uncertain or name is None or not (name.isascii() and name.isdecimal()):
            return None, None
        found.append(int(name))
    return (min(found), max(found)) if found else (None, None)


def _columns(rows: Sequence[_Fields]) -> Any:
    """A TensorDict: tensors of equal shape are stacked, others nested, and the rest is stored as objects."""
    import torch
    from tensordict import NonTensorStack, TensorDict

    data: dict[str, Any] = {}
    for name in rows[0]:
        values = [row[name] for row in rows]
        if name in _INTEGERS + _FLOATS:
            kind = torch.int64 if name in _INTEGERS else torch.float32
            values = [torch.tensor(value, dtype=kind) for value in values]
        if not all(isinstance(value, torch.Tensor) for value in values):
            data[name] = NonTensorStack(*values)
        elif all(value.shape == values[0].shape for value in values):
            data[name] = torch.stack(values)
        else:
            data[name] = torch.nested.as_nested_tensor(values, layout=torch.jagged)
    return TensorDict(data, batch_size=[len(rows)])
