# SPDX-License-Identifier: Apache-2.0
"""Shows trajectories in Jupyter and VS Code, with the colours of tokentap's page.

Each function returns an object that a notebook shows as HTML. The HTML has no scripts and loads nothing, so it also
works in a saved notebook and without tokentap. The client needs the standard library only.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping
from functools import reduce
from html import escape
from typing import Any

from ._call import Call, Reply, target
from ._client import Client
from ._entropies import (
    THINK,
    Bin,
    Entropies,
    Histogram,
    Mean,
    Path,
    Split,
    ThinkIds,
    each_turn_once,
    has_no_thinking,
    several,
    think_ids,
)
from ._errors import TokentapError
from ._glyphs import glyphs, label
from ._pixels import MEDIA_TYPES, size_of
from ._routes import SESSION
from ._scale import COLOURS, MOST, STEPS, bar, colour, nats, ramp, shown, step
from ._texts import LOST, Texts

__all__ = ["View", "curve", "histogram", "show", "split", "tokens"]

_LIMIT = 3000
"""The default of the maximum number of tokens that are shown."""

_PICTURES = 20
"""The default of the maximum number of pictures that are read."""

_BYTES, _PIXELS = 4_000_000, 40_000_000
"""The maximum bytes and pixels of the pictures of a view. A decoded pixel has 4 bytes."""

_THINK = ThinkIds | Mapping[str, int] | None


class View:
    """HTML that notebooks show. `html` is the text of it."""

    def __init__(self, title: str, *parts: str) -> None:
        self.title = title
        self._body = "".join(parts)

    @property
    def html(self) -> str:
        """The HTML with its style sheet, which applies to nothing else on the page."""
        return f'<div class="tokentap"><style>{_STYLE}</style>{self._body}</div>'

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return f"<tokentap: {self.title}>"

    def __add__(self, other: View) -> View:
        """Both below each other."""
        return View(f"{self.title}; {other.title}", self._body, other._body)


def show(
    paths: Path | Iterable[Path],
    client: Client | None = None,
    *,
    texts: Mapping[int, str] | None = None,
    think: _THINK = None,
    start: int = 0,
    limit: int = _LIMIT,
    pictures: int = _PICTURES,
) -> View:
    """Each path: its tokens, the entropy along them, their histogram, and the split of thinking and answer.

    `paths` is what `client.trajectories(session)` returns, or some of its paths. With a `client` the texts of tokens
    come from the engine's tokenizer, and the think tokens from tokentap. Both can be given instead: `texts` by id, and
    `think`, the ids of the tokens that open and close thinking. `limit` tokens are shown, from position `start` on. The
    numbers are those of the whole path. With a `client` up to `pictures` pictures of the prompts are read and embedded.
    Raises ValueError if there is none, or one is not a path.
    """
    views = []
    for path in several(paths):
        entropies = Entropies.of(path, think_ids([path], client, think))
        view = _tokens(path, entropies, Texts(texts, client), _Pictures(path, client, pictures), start, limit)
        plots = [_curve(entropies), _histogram(Histogram.over([entropies])), _split([(path, entropies)], [entropies])]
        views.append(View(view.title, view._body, f'<div class="plots">{"".join(plots)}</div>'))
    if not views:
        raise ValueError("no path to show")
    return reduce(View.__add__, views)


def tokens(
    path: Path,
    client: Client | None = None,
    *,
    texts: Mapping[int, str] | None = None,
    think: _THINK = None,
    start: int = 0,
    limit: int = _LIMIT,
    pictures: int = _PICTURES,
) -> View:
    """The tokens of a path, coloured by entropy, with a legend. The arguments are those of `show`."""
    entropies = Entropies.of(path, think_ids([path], client, think))
    return _tokens(path, entropies, Texts(texts, client), _Pictures(path, client, pictures), start, limit)


def curve(path: Path, client: Client | None = None, *, think: _THINK = None) -> View:
    """The entropy along the sampled tokens, with its interval if the request asked for `bounds`."""
    entropies = Entropies.of(path, think_ids([path], client, think))
    return View(_summary(entropies.total), f'<div class="plots">{_curve(entropies)}</div>')


def histogram(paths: Path | Iterable[Path]) -> View:
    """The histogram of the entropies of all sampled tokens of a batch of rollouts. A shared turn counts once."""
    found = Histogram.of(paths)
    return View(_summary(found.total), f'<div class="plots">{_histogram(found)}</div>')


def split(paths: Path | Iterable[Path], client: Client | None = None, *, think: _THINK = None) -> View:
    """The mean entropies of thinking and answer, over the tokens of all paths that have a think span."""
    batch = several(paths)
    ids = think_ids(batch, client, think)
    rows = [(path, Entropies.of(path, ids)) for path in batch]
    return View("thinking and answer", f'<div class="plots">{_split(rows, each_turn_once(batch, ids))}</div>')


def _summary(mean: Mean) -> str:
    return f"mean {shown(mean.value)} nats, {_measured(mean)} sampled tokens measured"


def _measured(mean: Mean) -> str:
    return f"{mean.measured:,} of {mean.tokens:,}"


# The tokens


def _tokens(path: Path, entropies: Entropies, texts: Texts, pictures: _Pictures, start: int, limit: int) -> View:
    count = len(path["token_ids"])
    start = min(max(0, start), count)
    end = min(count, start + max(0, limit))
    shown_ids = path["token_ids"][start:end]
    texts.load(shown_ids)
    title = f"session {path.get('session')}, path to turn {path.get('leaf')}"
    facts = [_summary(entropies.total), *_measurement(path), *([texts.problem] if texts.problem else [])]
    if path.get("reward") is not None:
        facts.append(f"reward {json.dumps(path['reward'])}")
    out = [f'<div class="about"><strong>{label(title)}</strong>']
    out.extend(f" · <span>{label(fact, 400)}</span>" for fact in facts)
    out.append(f"</div>{_LEGEND}")
    if start > 0:
        out.append(_hidden(start, f"before token {start:,}: start=0"))
    out.append('<div class="tokens">')
    column = dict(zip(entropies.positions, range(len(entropies.positions)), strict=True))
    for number, segment in enumerate(path["segments"]):
        first, last = max(start, segment["start"]), min(end, segment["end"])
        if first < last:
            kind = "response" if segment["kind"] == "response" else "between" if number else "prompt"
            out.append(f'<div class="head">{_heading(path, segment, kind)}</div><div class="text {kind}">')
            for picture in pictures.between(first, last):
                out.extend(_runs(path, entropies, column, texts, shown_ids, start, first, picture["start"]))
                out.append(pictures.html(picture))
                first = max(first, picture["end"])
            out.extend(_runs(path, entropies, column, texts, shown_ids, start, first, last))
            out.append("</div>")
    out.append("</div>")
    if end < count:
        out.append(_hidden(count - end, f"after token {end:,}: start={end}, or a larger limit"))
    return View(f"{title}, {_summary(entropies.total)}", *out)


def _hidden(count: int, how: str) -> str:
    return f'<p class="hidden"><strong>{count:,} tokens not shown</strong> ({how})</p>'


def _measurement(path: Path) -> list[str]:
    measured = [turn.get("measured") or {} for turn in path.get("turns") or ()]
    kinds = [(one.get("estimator"), one.get("source"), one.get("top_k")) for one in measured]
    named = dict.fromkeys(
        f"{estimator} ({source}{f', k = {k}' if k else ''})" for estimator, source, k in kinds if estimator and source
    )
    reasons = dict.fromkeys(str(one["reason"]) for one in measured if one.get("reason"))
    return [*named, *(f"not measured: {reason}" for reason in reasons)]


def _heading(path: Path, segment: Mapping[str, Any], kind: str) -> str:
    turn: Mapping[str, Any] = next((one for one in path.get("turns") or () if one["id"] == segment["turn"]), {})
    name = {"prompt": "prompt", "between": "prompt, new in this turn", "response": "sampled"}[kind]
    parts = [f"turn {segment['turn']}", name, f"{segment['end'] - segment['start']:,} tokens"]
    if kind == "response":
        if turn.get("finish_reason"):
            parts.append(f"ends by {turn['finish_reason']}")
        if turn.get("fault"):
            parts.append(str(turn["fault"]))
        elif not segment.get("loss_mask", 1):
            parts.append("not trained in this row")
    elif turn.get("cause") not in (None, "first"):
        parts.append(str(turn["cause"]))
    return label(" · ".join(parts))


def _runs(
    path: Path,
    entropies: Entropies,
    column: Mapping[int, int],
    texts: Texts,
    shown_ids: list[int],
    start: int,
    first: int,
    last: int,
) -> Iterator[str]:
    """The tokens `first` to `last`; neighbours with equal classes are one element."""
    mask = path.get("loss_mask")
    classes, run_start, body = "", first, list[str]()
    for at in range(first, last):
        own = column.get(at, -1)
        shape, html = _token(texts, shown_ids, at - start)
        names = ["p"] if own < 0 else _classes(entropies, own, trained=mask is None or bool(mask[at]))
        joint = " ".join([*names, shape] if shape else names)
        if joint != classes:
            if body:
                yield _run(entropies, column, classes, run_start, at, body)
            classes, run_start, body = joint, at, []
        body.append(html)
    if body:
        yield _run(entropies, column, classes, run_start, last, body)


def _classes(entropies: Entropies, own: int, *, trained: bool) -> list[str]:
    level = step(entropies.nats[own])
    names = ["s", "none" if level < 0 else f"e{level}"]
    if not trained:
        names.append("m")
    if entropies.parts is not None and entropies.parts[own] == THINK:
        names.append("think")
    return names


def _run(entropies: Entropies, column: Mapping[int, int], classes: str, start: int, end: int, body: list[str]) -> str:
    hint = _hint(entropies, column, start, end) if start in column else ""
    title = f' title="{escape(hint)}"' if hint else ""
    return f'<span class="{classes}"{title}>{"".join(body)}</span>'


def _hint(entropies: Entropies, column: Mapping[int, int], start: int, end: int) -> str:
    own = range(column[start], column[end - 1] + 1)
    place = f"token {start + 1:,}" if end - start == 1 else f"tokens {start + 1:,} to {end:,}"
    known = [entropies.nats[at] for at in own if entropies.nats[at] >= 0]
    if not known:
        return f"{place}: not measured"
    low, high = shown(min(known)), shown(max(known))
    text = f"{place}: {low} nats" if low == high else f"{place}: {low} to {high} nats"
    if len(own) == 1 and entropies.lower[own[0]] <= entropies.upper[own[0]]:
        text += f", interval {shown(entropies.lower[own[0]])} to {shown(entropies.upper[own[0]])}"
    return text


# around the bytes of an incomplete character, as on the page
_OPEN, _CLOSE = "\u2039", "\u203a"


def _token(texts: Texts, ids: list[int], at: int) -> tuple[str, str]:
    """The class and the HTML of a token."""
    text = texts.of(ids[at])
    if text is None:
        # a path that was read from a file can have anything here
        return "id", f"⟨{escape(str(ids[at]))}⟩"
    if text == "":
        return "id", "∅"
    if LOST in text:
        # the last token of a run of incomplete characters also shows the text of the run
        whole = texts.whole(ids, at)
        joint = f'<span class="g">{glyphs(whole)}</span>' if whole else ""
        return "bytes", f"{_OPEN}{glyphs(text.replace(LOST, '··'))}{_CLOSE}{joint}"
    return "", glyphs(text)


# The pictures


class _Pictures:
    """The pictures of a path as HTML. An agent has chosen their bytes, and a file can have anything in `images`."""

    def __init__(self, path: Path, client: Client | None, most: int) -> None:
        self._session = str(path.get("session"))
        self._client = client
        self._left = max(0, most)
        self._bytes, self._pixels = _BYTES, _PIXELS
        self._placed: list[Mapping[str, Any]] = []
        last = 0
        for image in path.get("images") or ():
            start, end = image.get("start"), image.get("end")
            if not isinstance(start, int) or not isinstance(end, int) or not last <= start < end:
                continue
            if any(segment["start"] <= start and end <= segment["end"] for segment in path["segments"]):
                self._placed.append(image)
                last = end

    def between(self, first: int, last: int) -> list[Mapping[str, Any]]:
        """The pictures that have one of these tokens."""
        return [image for image in self._placed if image["start"] < last and image["end"] > first]

    def html(self, image: Mapping[str, Any]) -> str:
        """The picture, or why it is not shown, with what identifies it."""
        start, end = image["start"], image["end"]
        place = f"1 token, {end:,}" if end - start == 1 else f"{end - start:,} tokens, {start + 1:,} to {end:,}"
        size = image.get("bytes")
        own = [image.get("media_type"), f"{size:,} bytes" if isinstance(size, int) else "unknown size"]
        data, what = self._embedded(image)
        picture = f'<img alt="picture, {what}{place}" src="{data}"/>' if data else ""
        caption = label(f"{what}{own[0]}, {own[1]}, {place}, sha256 {image.get('sha256')}", 400)
        return f'<span class="picture">{picture}<span class="g">{caption}</span></span>'

    def _embedded(self, image: Mapping[str, Any]) -> tuple[str | None, str]:
        """The picture as a data URI, and its size; without one, why it is not shown."""
        size, sha256 = image.get("bytes"), str(image.get("sha256"))
        is_named = SESSION.fullmatch(self._session) and re.fullmatch("[0-9a-f]{64}", sha256)
        if image.get("available") is not True or not isinstance(size, int) or not is_named:
            return None, "not available: "
        if image.get("media_type") not in MEDIA_TYPES:
            return None, "not a picture that is shown: "
        if self._left == 0:
            return None, "not shown (pictures=): "
        if self._client is None:
            return None, "not shown without client=: "
        if size > self._bytes:
            return None, "not shown, too many bytes: "
        self._left -= 1
        try:
            data = self._client._send(_image(self._session, sha256))
        except TokentapError as error:
            if error.status is None:
                self._client = None  # the next one would wait as long
            return None, f"not read ({error}): "
        found = size_of(data)
        if found is None:
            return None, "not shown, not a picture of a known size: "
        if len(data) > self._bytes:
            return None, "not shown, too many bytes: "
        if found.width * found.height > self._pixels:
            return None, f"not shown, {found.width:,} x {found.height:,} pixels: "
        self._bytes -= len(data)
        self._pixels -= found.width * found.height
        # the media type is that of the header, so it is never SVG or HTML
        return (
            f"data:{found.media_type};base64,{b64encode(data).decode()}",
            f"{found.width:,} x {found.height:,} pixels, ",
        )


def _image(session: str, sha256: str) -> Call[bytes]:
    """`GET /v1/sessions/{id}/images/{sha256}`."""

    def read(reply: Reply) -> bytes:
        return reply.body

    return Call("GET", target("v1", "sessions", session, "images", sha256), read)


# The plots

_WIDTH, _HEIGHT = 340, 124
_LEFT, _BOTTOM, _TOP, _RIGHT = 30, 18, 6, 4
_INNER, _DEEP = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _BOTTOM - _TOP


def _figure(title: str, name: str, caption: str, *parts: str, height: int = _HEIGHT) -> str:
    """A plot with its caption; `parts` are SVG."""
    return (
        f'<figure><div class="head">{escape(title)}</div>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(name)}">{"".join(parts)}</svg>'
        f"<figcaption>{escape(caption)}</figcaption></figure>"
    )


def _axes() -> str:
    return f'<path class="axis" d="M{_LEFT} {_TOP}V{_TOP + _DEEP}H{_WIDTH - _RIGHT}"/>'


def _words(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _curve(entropies: Entropies) -> str:
    bins = entropies.bins(_INNER)
    bounds = [one.upper for one in bins if one.upper is not None]
    # a bin of several tokens shows the mean as a line above the area of the highest value
    is_binned = len(entropies.nats) > len(bins)
    peaks = [one.most for one in bins if one.most is not None]
    # the upper bound of a token may be far above the estimate, up to the logarithm of the vocabulary
    most = max(0.5, *(-(-value * 2 // 1) / 2 for value in [*peaks, *bounds, 0.0]))

    def x(at: float) -> float:
        return _LEFT + at / max(1, len(bins)) * _INNER

    def y(value: float) -> float:
        return _TOP + _DEEP * (1 - min(value, most) / most)

    area, band, line, thinking, missing = [], [], [], [], []
    for at, one in enumerate(bins):
        if one.thinks:
            thinking.append(f"M{x(at):.1f} {_TOP}H{x(at + 1):.1f}V{_TOP + _DEEP}H{x(at):.1f}Z")
        if one.mean is None or one.most is None:
            is_next = at > 0 and bins[at - 1].mean is None
            missing.append(f"{'' if is_next else f'M{x(at):.1f} {_TOP + _DEEP - 1}'}H{x(at + 1):.1f}")
            continue
        area.append(f"M{x(at):.1f} {_TOP + _DEEP}V{y(one.most):.1f}H{x(at + 1):.1f}V{_TOP + _DEEP}Z")
        is_next = at > 0 and bins[at - 1].mean is not None
        line.append(f"{'L' if is_next else 'M'}{x(at + 0.5):.1f} {y(one.mean):.1f}{'' if is_next else 'h.1'}")
    for own in _stretches(bins):
        upper = [f"{x(at):.1f} {y(bins[at].upper or 0):.1f}H{x(at + 1):.1f}" for at in own]
        lower = [f"{x(at + 1):.1f} {y(bins[at].lower or 0):.1f}H{x(at):.1f}" for at in reversed(own)]
        band.append(f"M{'L'.join([*upper, *lower])}Z")
    paths = [("thinking", thinking), ("most", area), ("band", band)]
    if is_binned:
        paths.append(("mean", line))
    drawn = [f'<path class="{name}" d="{"".join(parts)}"/>' for name, parts in [*paths, ("missing", missing)] if parts]
    axis = [
        _words(_LEFT - 4, _TOP + 8, "end", shown(most, 1)),
        _words(_LEFT - 4, _TOP + _DEEP, "end", "0"),
        _words(_LEFT, _HEIGHT - 4, "start", "1"),
        _words((_LEFT + _WIDTH) / 2, _HEIGHT - 4, "middle", "sampled token"),
        _words(_WIDTH - _RIGHT, _HEIGHT - 4, "end", f"{len(entropies.nats):,}"),
    ]
    parts = [_summary(entropies.total)]
    if is_binned:
        parts.append("area: highest of each bin, line: mean")
    parts.append("band: interval" if band else "interval not measured")
    if thinking:
        parts.append("shaded: thinking")
    if missing:
        parts.append("dashed: not measured")
    return _figure("entropy along the path, nats", _summary(entropies.total), "; ".join(parts), _axes(), *drawn, *axis)


def _stretches(bins: list[Bin]) -> list[list[int]]:
    """Neighbouring bins with an interval."""
    found: list[list[int]] = []
    for at, one in enumerate(bins):
        if one.lower is None or one.upper is None:
            continue
        if found and found[-1][-1] == at - 1:
            found[-1].append(at)
        else:
            found.append([at])
    return found


def _histogram(found: Histogram) -> str:
    most = max(1, *found.counts)
    wide = _INNER / STEPS
    bars = []
    for level, count in enumerate(found.counts):
        if count:
            # the square root shows small counts beside large ones
            high = max(1.0, (count / most) ** 0.5 * _DEEP)
            title = f"{count:,} tokens around {shown(nats(level), 2)} nats"
            bars.append(
                f'<rect class="bin e{level}" x="{_LEFT + level * wide + 0.5:.1f}" y="{_TOP + _DEEP - high:.1f}" '
                f'width="{wide - 1:.1f}" height="{high:.1f}"><title>{title}</title></rect>'
            )
    ticks = [
        _words(_LEFT + ((value / MOST) ** 0.5 * (STEPS - 1) + 0.5) * wide, _HEIGHT - 4, "middle", f"{value:g}")
        for value in (0, 0.1, 0.5, 1, 2)
    ]
    ticks.append(_words(_WIDTH - _RIGHT, _HEIGHT - 4, "end", f"{MOST}+ nats"))
    ticks.append(_words(_LEFT - 4, _TOP + 8, "end", f"{most:,}" if most < 10_000 else f"{most / 1000:.0f}k"))
    batch = f"{found.paths:,} rollouts, " if found.paths != 1 else ""
    caption = f"{batch}{_summary(found.total)}; heights: square root of the number of tokens"
    return _figure("tokens by entropy", f"{batch}{_summary(found.total)}", caption, _axes(), *bars, *ticks)


def _split(rows: list[tuple[Path, Entropies]], pooled: list[Entropies]) -> str:
    """The means of thinking and answer; a sentence without them. `pooled` has each turn once."""
    title = "thinking and answer, mean nats"
    splits = [found for _, entropies in rows if (found := entropies.split()) is not None]
    if not splits:
        is_unknown = any(own.parts is None and not has_no_thinking(path) for path, own in rows)
        text = "the ids of the think tokens are not known (client=, or think=)" if is_unknown else "no think span"
        return f'<figure><div class="head">{title}</div><p class="absent">{text}</p></figure>'
    both = Split.pooled(pooled)
    values = [mean.value for one in [both, *splits] for mean in (one.think, one.answer) if mean.value is not None]
    most = max([0.001, *values])
    left, height = 100, 64
    inner = _WIDTH - left - _RIGHT
    out = []
    for row, (name, mean) in enumerate((("thinking", both.think), ("answer", both.answer))):
        middle = 16 + row * 30
        if mean.value is None:
            absent = "not measured" if mean.tokens else "no tokens"
            out.append(_words(left - 6, middle + 4, "end", name))
            out.append(_words(left + 4, middle + 4, "start", absent))
            continue
        out.append(_words(left - 6, middle + 4, "end", f"{name} {shown(mean.value)}"))
        wide = mean.value / most * inner
        out.append(
            f'<rect class="bin e{step(mean.value)}" x="{left}" y="{middle - 9}" width="{wide:.1f}" height="18"/>'
        )
        each = [one.think if row == 0 else one.answer for one in splits]
        if len(splits) > 1:
            dots = (f"M{left + one.value / most * inner:.1f} {middle - 9}v18" for one in each if one.value is not None)
            out.append(f'<path class="rollout" d="{"".join(dots)}"/>')
    counts = f"thinking: {_measured(both.think)} tokens measured; answer: {_measured(both.answer)}"
    batch = f"{len(splits):,} of {len(rows):,} rollouts have a think span, one stroke each; " if len(rows) > 1 else ""
    axis = f'<path class="axis" d="M{left} 4V{height - 4}"/>'
    return _figure(title, f"{title}; {counts}", f"{batch}{counts}", axis, *out, height=height)


# The style sheet


def _colours(*, dark: bool) -> str:
    names = "".join(f"--{name}:{colour(name, dark=dark)};" for name in COLOURS)
    stripes = "#ffffff17" if dark else "#00000012"
    return names + f"--stripe:{stripes};" + "".join(f"--c{at}:{own};" for at, own in enumerate(ramp(dark=dark)))


def _style() -> str:
    light, dark = _colours(dark=False), _colours(dark=True)
    # first the system's choice, then that of the notebook, which may differ
    themes = (
        f".tokentap{{color-scheme:light dark;{light}}}"
        f"@media (prefers-color-scheme:dark){{.tokentap{{{dark}}}}}"
        f'.vscode-light .tokentap,[data-jp-theme-light="true"] .tokentap{{color-scheme:light;{light}}}'
        f'.vscode-dark .tokentap,[data-jp-theme-light="false"] .tokentap{{color-scheme:dark;{dark}}}'
    )
    steps = "".join(
        f".tokentap .e{at}{{--c:var(--c{at})}}"
        + (f".tokentap .s.e{at}{{box-shadow:inset 0 -{bar(at)}px var(--bar)}}" if bar(at) else "")
        for at in range(STEPS)
    )
    rules = """
{background:var(--ground);color:var(--ink);font:13px/1.5 system-ui,sans-serif;padding:10px 14px;border-radius:6px}
 .about,.legend{margin:0 0 6px;color:var(--quiet)} strong{color:var(--ink);font-weight:600}
 .legend{display:flex;flex-wrap:wrap;gap:4px 14px;align-items:center}
 .ramp{display:inline-flex;margin:0 6px;vertical-align:-3px} .ramp .s{width:9px;height:16px;border-radius:0}
 .tokens{max-height:34em;overflow:auto;border:1px solid var(--line);border-radius:6px;padding:4px 12px 8px}
 .head{color:var(--quiet);font-size:12px;margin:6px 0 2px}
 .text{font:14px/24px ui-monospace,"SF Mono","Cascadia Mono","DejaVu Sans Mono",Menlo,Consolas,monospace}
 .text{white-space:pre-wrap;overflow-wrap:anywhere;border-left:3px solid var(--line);padding-left:10px}
 .text.response{border-left-color:transparent} .text.between{border-left-color:var(--accent)}
 .s,.p{unicode-bidi:isolate;direction:ltr;border-radius:2px} .s{background-color:var(--c);padding:2px 0}
 .s.none{background-color:transparent;outline:1px dashed var(--quiet);outline-offset:-1px}
 .m{background-image:repeating-linear-gradient(135deg,transparent 0 4px,var(--stripe) 4px 6px)}
 .p,.g,.absent{color:var(--quiet)} .think{font-style:italic} .id,.bytes,.g{font-size:.86em}
 .bytes{text-decoration:underline dotted var(--quiet);text-underline-offset:3px}
 .g.odd{color:var(--alarm);border:1px solid currentColor;border-radius:3px;padding:0 1px}
 .picture{display:flex;flex-wrap:wrap;gap:2px 12px;align-items:center;margin:4px 0;padding:4px 8px}
 .picture{border:1px solid var(--line);border-radius:6px;width:fit-content;max-width:100%}
 .picture img{max-width:320px;max-height:200px;margin:0}
 .hidden{margin:6px 0;padding:4px 12px;border:1px dashed var(--quiet);border-radius:6px}
 .plots{display:flex;flex-wrap:wrap;gap:6px 22px} figure{margin:4px 0;flex:1 1 290px;max-width:420px}
 figcaption{color:var(--quiet);font-size:12px} p.absent{margin:4px 0}
 svg{display:block;width:100%;height:auto;background:none} svg text{font:11px system-ui,sans-serif;fill:var(--quiet)}
 .axis{stroke:var(--line);fill:none} .most{fill:var(--bar);opacity:.35}
 .band{fill:var(--bar);stroke:var(--bar);stroke-width:.7;opacity:.75}
 .mean{stroke:var(--ink);fill:none;stroke-linejoin:round} .thinking{fill:var(--accent);opacity:.12}
 .missing{stroke:var(--quiet);stroke-width:2;stroke-dasharray:3 3} .bin{fill:var(--c);stroke:var(--bar);stroke-width:.5}
 .rollout{stroke:var(--ink);opacity:.55}
"""
    return themes + steps + "".join(_scoped(rules))


def _scoped(rules: str) -> Iterator[str]:
    """Limits each rule to what is inside of the view."""
    for rule in rules.replace("\n", "").split("}")[:-1]:
        selectors, body = rule.split("{")
        names = [name.strip() for name in selectors.split(",")]
        yield f"{','.join(f'.tokentap {name}'.rstrip() for name in names)}{{{body}}}"


_STYLE = _style()

_LEGEND = (
    '<div class="legend"><span>entropy 0<span class="ramp">'
    + "".join(f'<span class="s e{at}" title="{shown(nats(at), 2)} nats"></span>' for at in range(STEPS))
    + f'</span>{MOST}+ nats</span><span><span class="s none">&nbsp;not measured&nbsp;</span></span>'
    '<span><span class="p">prompt</span></span><span><span class="think">thinking</span></span>'
    '<span><span class="m">&nbsp;not trained&nbsp;</span></span></div>'
)
