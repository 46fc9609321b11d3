# SPDX-License-Identifier: Apache-2.0
"""Converts the events of a stream to deltas."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ._brief import Brief
from ._errors import Interrupted, Undecodable, of_status
from ._generation import Aligned, Numbers, finish_reason


@dataclass(frozen=True, repr=False)
class Delta(Brief):
    """The new part of an event, for the sequence `index` of the request (0 for a single one).

    The lists have one entry for each new token. A list is None if the stream does not have it, or if its length is not
    that of the ids (then `reason` says so). `finish_reason` is set in the last event of a sequence. `meta_info` and
    `raw` are the engine's; in a cumulative stream they hold everything so far.
    """

    index: int
    text: str
    output_ids: list[int]
    entropy: Numbers | None
    lower: Numbers | None
    upper: Numbers | None
    logprobs: Numbers | None
    finish_reason: str | None
    meta_info: dict[str, Any] = field(repr=False)
    raw: dict[str, Any] = field(repr=False)
    # Why numbers of the event are None here; None if none were dropped.
    reason: str | None = None

    @property
    def entropy_info(self) -> dict[str, Any] | None:
        """How the entropies were obtained; set in the last event of a sequence."""
        return self.meta_info.get("entropy_info")


class Decoder:
    """Parses the bytes of an event stream into events."""

    def __init__(self) -> None:
        self._rest = b""
        self._begun = False
        self._ended = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that these bytes complete. Raises an error that the engine sent as an event."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self._ended or not line.startswith(b"data:"):
                continue
            self._begun = True
            payload = line[5:].strip()
            if payload == b"[DONE]":
                self._ended = True
                return
            yield self._event(payload.decode("utf-8", "replace"))

    def end(self, status: int) -> None:
        """Raises an error if the stream ended too early."""
        if self._ended:
            return
        if not self._begun and self._rest.lstrip()[:1] in (b"{", b"[", b"<"):
            text = self._rest.decode("utf-8", "replace")[:1000]
            raise Undecodable("the reply is not an event stream", status=status, body=text, lasting=True)
        raise Interrupted("the stream ended before [DONE]", status=status)

    def _event(self, text: str) -> dict[str, Any]:
        try:
            event = json.loads(text)
        except ValueError as error:
            raise Undecodable(f"an event is not JSON: {error}", status=200, body=text) from error
        except RecursionError as error:
            message = "an event is JSON that is nested too deeply"
            raise Undecodable(message, status=200, body=text[:1000], lasting=True) from error
        if isinstance(event, dict) and "error" in event:
            detail = event["error"]
            code = detail.get("code") if isinstance(detail, Mapping) else None
            raise of_status(code if isinstance(code, int) and code >= 400 else 500, text)
        if not isinstance(event, dict) or "meta_info" not in event:
            raise Undecodable("an event is not a generation", status=200, body=text, lasting=True)
        return event


@dataclass
class Sequence:
    """The part of a sequence that was already returned."""

    text: str = ""
    # An incomplete character at the end of the text.
    held: str = ""
    ids: list[int] = field(default_factory=list)
    # The engine's count of tokens.
    tokens: int = 0
    counts: dict[str, int] = field(default_factory=dict)


class Deltas:
    """Converts the events of one request to deltas.

    The server does not report whether a list holds all tokens or only the new ones, and 0.5.6 mixes both. It is
    determined once for each list, by the first event that shows it, and then holds for the whole stream. The event of
    an aborted sequence repeats everything in either mode.
    """

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}
        # For each list, by name: whether events repeat it.
        self._repeats: dict[str, bool] = {}

    def of(self, raw: dict[str, Any]) -> Delta:
        """The new part of this event; raises `Undecodable` if a required member is missing."""
        try:
            return self._delta(raw)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise Undecodable(f"an event: {error!r}", status=200, body=json.dumps(raw), lasting=True) from error

    def _delta(self, raw: dict[str, Any]) -> Delta:
        meta, index = raw["meta_info"], raw.get("index") or 0
        seen = self._sequences.setdefault(index, Sequence())
        total: int = meta["completion_tokens"]
        text: str = raw.get("text") or ""
        reason = finish_reason(meta)
        whole = self._repeats.get("ids", False)

        def new(name: str, values: list[Any] | None) -> list[Any] | None:
            nonlocal whole
            if values is None:
                return None
            # an aborted sequence does not show the mode of the others
            if values and seen.tokens and name not in self._repeats and reason != "abort":
                self._repeats[name] = self._repeated(name, values, seen, total, text, meta)
            before = seen.counts.get(name, 0)
            again = before > 0 and len(values) >= total and len(values) > total - seen.tokens
            whole = self._repeats.get(name, False) or again
            if whole:
                values = values[before:]
            if name != "ids" and (whole or not seen.tokens):
                # an engine may send one row more than it counts
                values = values[: max(total - before, 0)]
            seen.counts[name] = before + len(values)
            return values

        rows = meta.get("output_token_logprobs")
        # output_ids of sglang-jax lack the stop token and special tokens; the rows have them
        ids = new("ids", raw.get("output_ids")) or [] if rows is None else []
        numbers = {
            name: new(name, meta.get(f"output_token_{name}")) for name in ("entropy", "entropy_lower", "entropy_upper")
        }
        if rows is not None:
            rows = new("logprobs", rows) or []
            ids = [row[1] for row in rows]
        # the text has the mode of the rows; with 0.5.6 --stream-output the ids have another mode
        added = self._text(seen, text, whole, reason is not None)
        seen.ids += ids
        seen.counts["ids"] = len(seen.ids)
        seen.tokens = max(seen.tokens, total)
        fitting = Aligned(len(ids))
        return Delta(
            index=index,
            text=added,
            output_ids=ids,
            entropy=fitting.of("entropy", numbers["entropy"]),
            lower=fitting.of("lower", numbers["entropy_lower"]),
            upper=fitting.of("upper", numbers["entropy_upper"]),
            logprobs=None if rows is None else [row[0] for row in rows],
            finish_reason=reason,
            meta_info=meta,
            raw=raw,
            reason=fitting.reason,
        )

    @staticmethod
    def _repeated(name: str, values: list[Any], seen: Sequence, total: int, text: str, meta: Mapping[str, Any]) -> bool:
        fresh = total - seen.tokens
        if name != "ids":
            return len(values) > fresh
        if len(values) >= total:
            return True
        # fewer ids than tokens: they are the new ones, or the engine omits some, as sglang-jax does
        if values[: len(seen.ids)] != seen.ids or not text.startswith(seen.text):
            return False
        # a repeated id looks like an omitted one; only sglang-jax, which has this member, omits ids
        return len(values) != fresh or "cache_miss_count" in meta

    def _text(self, seen: Sequence, text: str, is_whole: bool, is_last: bool) -> str:
        # an incomplete character is U+FFFD until its other bytes arrive
        shown = text if is_last else text.rstrip("\ufffd")
        if is_whole:
            added, seen.held = shown[len(seen.text) :], ""
        else:
            added, seen.held = seen.held + shown, text[len(shown) :]
        seen.text += added
        return added
