"""A generation while it runs: the events of a stream, made into what each of them adds."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import Undecodable, of_status
from .generation import Numbers, finish_reason, logprobs


@dataclass(frozen=True)
class Delta:
    """What an event adds to the sequence `index` of the request (0 for the only one).

    The lists have one entry for each new token, and are None where the stream has none of the kind. `finish_reason` is
    there in a sequence's last event. `meta_info` and `raw` are the engine's, and hold everything so far where the
    stream is cumulative.
    """

    index: int
    text: str
    output_ids: list[int]
    entropy: Numbers | None
    lower: Numbers | None
    upper: Numbers | None
    logprobs: Numbers | None
    finish_reason: str | None
    meta_info: dict[str, Any]
    raw: dict[str, Any]

    @property
    def entropy_info(self) -> dict[str, Any] | None:
        """How the entropies were obtained; in a sequence's last event."""
        return self.meta_info.get("entropy_info")


class Decoder:
    """Takes bytes of an event stream and gives the data of whole events."""

    def __init__(self) -> None:
        self._rest = b""
        self.ended = False

    def feed(self, data: bytes) -> Iterator[dict[str, Any]]:
        """The events that these bytes complete. Raises what the engine says instead of an event."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        for line in lines:
            if self.ended or not line.startswith(b"data:"):
                continue
            said = line[5:].strip()
            if said == b"[DONE]":
                self.ended = True
                return
            yield self._event(said.decode("utf-8", "replace"))

    def _event(self, text: str) -> dict[str, Any]:
        try:
            event = json.loads(text)
        except ValueError as error:
            raise Undecodable(f"an event that is no JSON: {error}", status=200, body=text) from error
        if isinstance(event, dict) and "error" in event:
            said = event["error"]
            code = said.get("code") if isinstance(said, Mapping) else None
            raise of_status(code if isinstance(code, int) and code >= 400 else 500, text)
        if not isinstance(event, dict) or "meta_info" not in event:
            raise Undecodable("an event that is no generation", status=200, body=text)
        return event


@dataclass
class Sequence:
    """How much of a sequence has been handed out."""

    text: str = ""
    # What may yet become a character.
    held: str = ""
    counts: dict[str, int] = field(default_factory=dict)


class Deltas:
    """Makes deltas of the events of one request.

    The server never says whether an event holds all there is or what is new, and 0.5.6 mixes both; an aborted sequence
    repeats everything. So each list is looked at: one as long as `completion_tokens` holds all there is.
    """

    def __init__(self) -> None:
        self._sequences: dict[int, Sequence] = {}

    def of(self, raw: dict[str, Any]) -> Delta:
        """What this event adds; `Undecodable` where it lacks what every engine sends."""
        try:
            return self._delta(raw)
        except (KeyError, TypeError) as error:
            raise Undecodable(f"an event: {error!r}", status=200, body=json.dumps(raw)) from error

    def _delta(self, raw: dict[str, Any]) -> Delta:
        meta, index = raw["meta_info"], raw.get("index") or 0
        seen = self._sequences.setdefault(index, Sequence())
        total = meta["completion_tokens"]
        whole: dict[str, bool] = {}

        def new(name: str, values: list[Any] | None) -> list[Any] | None:
            if values is None:
                return None
            before = seen.counts.get(name, 0)
            whole[name] = before > 0 and len(values) >= total
            values = values[before:] if whole[name] else values
            seen.counts[name] = before + len(values)
            return values

        ids = new("ids", raw.get("output_ids")) or []
        entropy = new("entropy", meta.get("output_token_entropy"))
        rows = new("logprobs", logprobs(meta))
        reason = finish_reason(meta)
        return Delta(
            index=index,
            # the text grows as the logprobs do, where 0.5.6 --stream-output gives ids otherwise
            text=self._text(seen, raw.get("text") or "", next(reversed(whole.values()), False), reason is not None),
            output_ids=ids,
            entropy=entropy,
            lower=new("lower", meta.get("output_token_entropy_lower")),
            upper=new("upper", meta.get("output_token_entropy_upper")),
            logprobs=rows,
            finish_reason=reason,
            meta_info=meta,
            raw=raw,
        )

    def _text(self, seen: Sequence, text: str, is_whole: bool, is_last: bool) -> str:
        # half a character shows as U+FFFD until the rest of it comes
        shown = text if is_last else text.rstrip("\ufffd")
        if is_whole:
            added, seen.held = shown[len(seen.text) :], ""
        else:
            added, seen.held = seen.held + shown, text[len(shown) :]
        seen.text += added
        return added
