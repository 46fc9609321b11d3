# SPDX-License-Identifier: Apache-2.0
"""The texts of token ids, decoded by the engine's tokenizer through `POST /detokenize` of the control port."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from . import _routes as routes
from ._client import Client
from ._errors import TokentapError

BATCH = 512
"""The maximum number of items per request; each is decoded separately."""

RUN = 16
"""The maximum number of neighbouring tokens that share characters and are decoded together."""

LOST = "\ufffd"


class Texts:
    """The texts of ids: those that are given, and those of the engine if there is a client."""

    def __init__(self, texts: Mapping[int, str] | None = None, client: Client | None = None) -> None:
        self._known = dict(texts or {})
        self._client = client
        self._runs: dict[tuple[int, ...], str] = {}
        # A token that is decoded before others, for tokenizers that drop the leading space of a text.
        self._anchor: int | None = None
        self._has_anchor = False
        # The error of the last request; empty after a success.
        self.problem = ""

    def of(self, id: int) -> str | None:
        """The text of a single token, or None. U+FFFD replaces bytes that are not a complete character."""
        return self._known.get(id)

    def whole(self, ids: Sequence[int], at: int) -> str | None:
        """The text of the run of incomplete characters that ends at this token; None if none ends here."""
        run = self._run(ids, at)
        text = self._runs.get(tuple(ids[run[0] : run[1]])) if run and run[1] == at + 1 else None
        return None if text is None or LOST in text else text

    def load(self, ids: Sequence[int]) -> None:
        """Fetches the missing texts, and those of neighbours that share characters. A failure is in `problem`."""
        if self._client is None:
            return
        try:
            missing = [id for id in dict.fromkeys(ids) if id not in self._known]
            for start in range(0, len(missing), BATCH):
                batch = missing[start : start + BATCH]
                self._known.update(zip(batch, self._alone(self._client, batch), strict=True))
            found = (self._run(ids, at) for at in range(len(ids)))
            runs = dict.fromkeys(tuple(ids[run[0] : run[1]]) for run in found if run)
            self._runs.update(self._joint(self._client, [run for run in runs if run not in self._runs]))
            self.problem = ""
        except TokentapError as error:
            self.problem = f"The engine's /detokenize failed ({error}). Tokens show their ids."

    def _run(self, ids: Sequence[int], at: int) -> tuple[int, int] | None:
        """The range of neighbouring tokens that are not complete characters; None if this token is complete."""

        def is_part(token: int) -> bool:
            return LOST in self._known.get(ids[token], "")

        if not is_part(at):
            return None
        start, end = at, at + 1
        while start > 0 and at - start < RUN and is_part(start - 1):
            start -= 1
        while end < len(ids) and end - start < RUN and is_part(end):
            end += 1
        return start, end

    def _joint(self, client: Client, runs: Sequence[tuple[int, ...]]) -> Iterable[tuple[tuple[int, ...], str]]:
        for start in range(0, len(runs), BATCH):
            batch = runs[start : start + BATCH]
            texts = client._send(routes.detokenize(batch))
            yield from zip(batch, texts, strict=True)

    def _alone(self, client: Client, ids: Sequence[int]) -> list[str]:
        """Decodes tokens separately. Some tokenizers drop the leading space of a text: an anchor precedes each."""
        if not self._has_anchor:
            *texts, joint = client._send(routes.detokenize([*([id] for id in ids), [ids[0], *ids[:8]]]))
            # if the tokens share characters, the test is inconclusive and is repeated with the next batch
            self._has_anchor = LOST not in joint
            if LOST in joint or len(joint) <= len(texts[0] + "".join(texts[:8])):
                return texts
            self._anchor = ids[0]
        if self._anchor is None:
            return client._send(routes.detokenize([[id] for id in ids]))
        before, *texts = client._send(routes.detokenize([[self._anchor], *([self._anchor, id] for id in ids)]))
        return [text.removeprefix(before) for text in texts]
