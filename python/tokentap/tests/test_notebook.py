# SPDX-License-Identifier: Apache-2.0
"""The HTML of notebooks: well formed, without scripts, escaped, and bounded in size."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import struct
import subprocess
import sys
import time
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import Demo
from test_entropies import END, PROMPT, START, path
from test_pixels import picture

import tokentap
from tokentap import Client, notebook
from tokentap._call import Call, Reply
from tokentap._errors import ConnectionFailed, HttpError, TokentapError
from tokentap._glyphs import glyphs
from tokentap._scale import ABSENT
from tokentap._texts import Texts


class Page(HTMLParser):
    """The elements of a view; fails for elements that do not nest."""

    VOID = ("path", "rect", "img")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        # the text of each element of the tokens, with its classes
        self.runs: list[tuple[str, str]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert not self.open, self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.elements.append((tag, dict(attrs)))
        classes = dict(attrs).get("class") or ""
        if tag == "span" and classes.split()[:1] in (["s"], ["p"]):
            self.runs.append((classes, ""))

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert tag in self.VOID
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data
            if self.runs:
                self.runs[-1] = (self.runs[-1][0], self.runs[-1][1] + data)


ALLOWED = {
    "div", "style", "span", "strong", "p", "figure", "figcaption", "svg", "path", "rect", "text", "title", "img",
}  # fmt: skip

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</span></div><style>*{display:none}</style>",
    "&lt;script&gt;", "'-alert(1)-'", "<!--", "]]>", "</style>", "\u202egnp.exe", "\x00\x1b[31m", "\ud800", "a" * 5000,
]  # fmt: skip


def check(html: str) -> Page:
    """Parses a view and checks that it is self-contained."""
    page = Page(html)
    assert {tag for tag, _ in page.elements} <= ALLOWED
    for tag, attributes in page.elements:
        assert not [
            name for name in attributes if name.startswith("on") or name in ("src", "href", "style")[tag == "img" :]
        ]
        assert tag != "img" or re.fullmatch(
            r"data:image/(png|jpeg|gif|webp|bmp);base64,[A-Za-z0-9+/]+=*", attributes["src"] or ""
        )
    assert html.count("<style>") == 1
    (style,) = re.findall(r"<style>(.*?)</style>", html, re.DOTALL)
    assert "url(" not in style
    assert "@import" not in style
    html.encode()  # no half of a surrogate pair
    return page


def test_text_of_tokens_is_escaped() -> None:
    of = path(
        ([1, 2], list(range(3, 3 + len(HOSTILE)))), session="<script>s</script>", reward={"why": "</div><script>"}
    )
    of["turns"][0].update(finish_reason="<b>", measured={"estimator": "<i>", "source": "<u>", "reason": "<em>"})
    texts = {1: "<b>prompt</b>", 2: "&", **{3 + at: text for at, text in enumerate(HOSTILE)}}
    view = notebook.show(of, texts=texts)
    page = check(view._repr_html_())
    shown = "".join(text for _, text in page.runs)
    for text in HOSTILE[:8]:
        assert text in shown
    assert "<b>prompt</b>&" in shown
    assert "\u202e" not in page.text
    assert "rlognp.exe" in shown
    assert "U+0000" in shown
    assert "U+D800" in shown
    assert "… 5,000 characters" in shown


def test_k_of_estimates_is_named() -> None:
    of = path(([1], [2, 3]), ([4], [5, 6]), ([7], [8]))
    for turn, (source, k) in zip(of["turns"], [("top_k", 20), ("top_k", None), ("top_k", 20)], strict=True):
        turn["measured"] = {"source": source, "estimator": "estimate", "top_k": k, "reason": None}
    text = check(notebook.show(of, texts=dict.fromkeys(range(9), "x")).html).text
    assert text.count("estimate (top_k, k = 20)") == 1
    assert text.count("estimate (top_k)") == 1


def test_rules_apply_inside_of_views_only() -> None:
    (style,) = re.findall(r"<style>(.*?)</style>", notebook.histogram([]).html, re.DOTALL)
    assert "prefers-color-scheme:dark" in style
    flat = re.sub(r"@media[^{]*\{(.*?\})\}", r"\1", style)
    selectors = [one for rule in flat.split("}")[:-1] for one in rule.split("{")[0].split(",")]
    assert len(selectors) > 60
    for selector in selectors:
        assert re.match(r"(\.vscode-\w+ |\[data-jp-theme-light=\"\w+\"\] )?\.tokentap( |$)", selector), selector


def test_missing_numbers_have_their_style_and_are_counted() -> None:
    values = [None, 0.0, None, math.nan, 0.1, 4.5]
    of = path(([1], [2, 3, 4, 5, 6]), entropy=values)
    page = check(notebook.show(of, texts=dict.fromkeys(range(9), "x")).html)
    tokens = [run for run in page.runs if run[1].startswith("x")]
    assert [classes for classes, _ in tokens] == ["p", "s e0", "s none", "s e4", "s e23"]
    assert "3 of 5 sampled tokens measured" in page.text
    assert "mean 1.533 nats" in page.text
    assert "dashed: not measured" in page.text
    assert "interval not measured" in page.text
    nothing = check(notebook.show(path(([1], [2]), entropy=[None, None])).html)
    assert f"mean {ABSENT} nats, 0 of 1 sampled tokens measured" in nothing.text


def test_equal_colours_are_one_element() -> None:
    of = path(([1], [2] * 1000), entropy=[None, *[0.5] * 600, *[2.0] * 400])
    of["loss_mask"][700:] = [0] * 301
    page = check(notebook.tokens(of).html)
    assert [classes for classes, text in page.runs if "⟨" in text] == ["p id", "s e8 id", "s e16 id", "s e16 m id"]
    titles = [attributes["title"] for tag, attributes in page.elements if "⟨" not in tag and "title" in attributes]
    assert "tokens 2 to 601: 0.500 nats" in titles


def test_a_range_of_the_tokens_is_shown() -> None:
    of = path(([1] * 10, list(range(100, 200))), ([5] * 10, list(range(200, 300))))
    page = check(notebook.tokens(of, start=50, limit=100).html)
    assert re.findall(r"⟨(\d+)⟩", page.text) == [str(id) for id in of["token_ids"][50:150]]
    assert "50 tokens not shown (before token 50: start=0)" in page.text
    assert "70 tokens not shown (after token 150: start=150, or a larger limit)" in page.text
    whole = check(notebook.tokens(of, limit=220).html)
    assert "not shown" not in whole.text
    outside = check(notebook.tokens(of, start=9999).html)
    assert "220 tokens not shown" in outside.text
    assert "200 of 200 sampled tokens measured" in outside.text, "the numbers are those of the whole path"


def test_a_path_of_100_000_tokens_is_small_and_fast() -> None:
    count = 100_000
    values = [(at * 7919 % 4001) / 1000 for at in range(count)]
    of = path(([1] * 100, list(range(count))), entropy=[*[None] * 100, *values])
    of["turns"][0]["extras"] = {
        "output_token_entropy_lower": [0.9 * x for x in values],
        "output_token_entropy_upper": [1.1 * x for x in values],
    }
    html, times = "", []
    for _ in range(3):
        began = time.process_time()
        html = notebook.show(of, think=(START, END)).html
        times.append(time.process_time() - began)
    page = check(html)
    assert len(html) < 1_000_000
    assert min(times) < 1.0, times
    assert "97,100 tokens not shown" in page.text
    assert "100,000 of 100,000 sampled tokens measured" in page.text
    assert len(notebook.show(of, limit=count).html) < 6_000_000


def test_bytes_of_a_character_are_joined() -> None:
    texts = Texts({1: "a", 2: "\ufffd", 3: "\ufffd"})
    texts._runs[(2, 3)] = "é"
    ids = [1, 2, 3, 1]
    assert [texts.whole(ids, at) for at in range(4)] == [None, None, "é", None]
    part = "\u2039··\u203a"
    html = [notebook._token(texts, ids, at) for at in range(4)]
    assert html[1:3] == [("bytes", part), ("bytes", f'{part}<span class="g">é</span>')]


def test_invisible_characters_are_glyphs() -> None:
    assert glyphs("a\nb\tc") == 'a<span class="g">↵</span>\nb<span class="g">→   </span>c'
    assert glyphs("\u0301") == "◌\u0301"
    assert glyphs("e\u0301") == "e\u0301"
    assert glyphs("\u200b") == '<span class="g odd">zwsp</span>'


@pytest.fixture
def client(demo: Demo) -> Any:
    with Client(demo.data, demo.control, retries=0) as client:
        yield client


def test_texts_and_thinking_come_from_tokentap(client: Client, session: str) -> None:
    sampling = {"max_new_tokens": 96, "temperature": 0.7, "sampling_seed": 1}
    made = client.generate(PROMPT, session=session, sampling_params=sampling, entropy_options={"bounds": True})
    (of,) = client.trajectories(session)["trajectories"]
    assert of["think_closed"]
    view = notebook.show(of, client)
    page = check(view.html)
    sampled = "".join(text for classes, text in page.runs if classes.startswith("s e"))
    first = made.text.split("</think>")[0].strip()
    assert first in sampled
    thoughts = "".join(text for classes, text in page.runs if classes.split()[-1] == "think")
    assert thoughts.replace("↵", "").strip() == first
    assert f"thinking {of['think_entropy_mean']:.3f}" in page.text
    assert f"thinking: {of['think_token_count']} of {of['think_token_count']} tokens measured" in page.text
    assert "band: interval" in page.text
    assert "⟨" not in page.text
    # without a client, ids
    assert f"⟨{of['token_ids'][0]}⟩" in notebook.tokens(of).html
    assert "the ids of the think tokens are not known" in notebook.show(of).html
    given = notebook.split([of], think=(START, END)).html
    assert f"thinking {of['think_entropy_mean']:.3f}" in given
    # without tokentap's /detokenize
    client.delete(session)
    with Client("http://127.0.0.1:9", "http://127.0.0.1:9", retries=0, connect_timeout=0.2) as gone:
        assert "Tokens show their ids" in notebook.tokens(of, gone, think=(START, END)).html


def test_a_path_without_thinking_has_no_split(client: Client, session: str) -> None:
    client.generate(input_ids=[299, 467], session=session, sampling_params={"max_new_tokens": 8, "ignore_eos": True})
    (of,) = client.trajectories(session)["trajectories"]
    for found in (notebook.show(of), notebook.show(of, client), notebook.split([of], client)):
        assert "no think span" in check(found.html).text
    assert "1 rollout" not in notebook.histogram(of).html
    assert "3 rollouts, mean" in notebook.histogram([of] * 3).html
    both = notebook.tokens(of, client) + notebook.histogram([of])
    check(both.html)
    assert repr(both).startswith(f"<tokentap: session {session}")
    assert "<div" not in repr(both)


PLACEHOLDER = 90


class Store:
    """A client that has these pictures, by digest."""

    def __init__(self, files: Iterable[bytes]) -> None:
        self.files = {hashlib.sha256(data).hexdigest(): data for data in files}
        self.asked: list[str] = []
        self.failure: TokentapError | None = None

    def _send(self, call: Call[Any]) -> Any:
        if call.target == "/detokenize":
            ids = json.loads(call.body or b"")["tokens"]
            return call.answer(Reply(200, {}, json.dumps({"text": ["t" for _ in ids]}).encode()))
        route, sha256 = call.target.rsplit("/", 1)
        assert re.fullmatch(r"/v1/sessions/s-\d+/images", route)
        assert (call.method, call.control) == ("GET", True)
        self.asked.append(sha256)
        if self.failure is not None:
            raise self.failure
        return call.answer(Reply(200, {}, self.files[sha256]))


def pictured(*files: bytes, tokens: int = 1000, **members: Any) -> dict[str, Any]:
    """A path whose first prompt has these pictures, each with so many tokens and one token before and after it."""
    prompt: list[int] = []
    images = []
    for data in files:
        prompt += [1, *[PLACEHOLDER] * tokens]
        sha256 = hashlib.sha256(data).hexdigest()
        place = {"turn": 0, "start": len(prompt) - tokens, "end": len(prompt)}
        images.append({**place, "sha256": sha256, "media_type": "image/png", "bytes": len(data), "available": True})
    return path(([*prompt, 2], [3, 4, 5]), images=images, think={"start": 8, "end": 9}, **members)


def view_of(of: dict[str, Any], store: Store | None, **options: Any) -> Page:
    return check(notebook.show(of, store, think=(START, END), limit=100_000, **options).html)  # type: ignore[arg-type]


def images(page: Page) -> list[dict[str, str | None]]:
    return [attributes for tag, attributes in page.elements if tag == "img"]


def png_header(width: int, height: int) -> bytes:
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", width, height) + b"\x08\x02\0\0\0"


def test_picture_is_one_element_with_its_bytes() -> None:
    files = [picture(kind, 64, 48) for kind in ("PNG", "JPEG", "GIF", "WEBP", "BMP")]
    of, store = pictured(*files), Store(files)
    page = view_of(of, store)
    found = images(page)
    assert [base64.b64decode((one["src"] or "").split(",")[1]) for one in found] == files
    kinds = [(one["src"] or "").split(";")[0] for one in found]
    assert kinds == [f"data:image/{kind}" for kind in ("png", "jpeg", "gif", "webp", "bmp")]
    assert found[1]["alt"] == "picture, 64 x 48 pixels, 1,000 tokens, 1,003 to 2,002"
    text = "".join(text for classes, text in page.runs if classes == "p")
    assert text.count("t") >= 6
    assert "⟨90⟩" not in page.text
    assert all(sha256 in page.text for sha256 in store.files)
    # the numbers are those of all tokens
    assert "3 of 3 sampled tokens measured" in page.text
    assert f"{len(of['token_ids']) - 3:,} tokens" in page.text
    # a range that begins inside of a picture
    part = check(notebook.tokens(of, store, start=1500, limit=600).html)  # type: ignore[arg-type]
    assert len(images(part)) == 2


def test_hostile_pictures_are_not_embedded() -> None:
    html = b"<script>alert(1)</script>"
    files = [
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        html,
        b"\x89PNG\r\n\x1a\n" + html,
        png_header(100_000, 100_000),
        b"RIFF\x16\0\0\0WEBPVP8X\x0a\0\0\0\0\0\0\0" + b"\xff" * 6,
    ]
    page = view_of(pictured(*files), Store(files))
    assert images(page) == []
    assert page.text.count("not shown, not a picture of a known size") == 3
    assert "not shown, 100,000 x 100,000 pixels" in page.text
    # what tokentap has recognised as another content is not read
    of, store = pictured(*files), Store(files)
    for image in of["images"]:
        image["media_type"] = "application/octet-stream"
    assert view_of(of, store).text.count("not a picture that is shown") == len(files)
    assert store.asked == []
    # markup in a valid picture stays base64
    polyglot = picture("PNG", 2, 2) + html
    page = view_of(pictured(polyglot), Store([polyglot]))
    assert len(images(page)) == 1
    assert "alert" not in page.text


def test_number_bytes_and_pixels_of_pictures_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    small = [picture("PNG", 10, 10 + at) for at in range(30)]
    of, store = pictured(*small, tokens=2), Store(small)
    assert (len(images(view_of(of, store))), len(store.asked)) == (notebook._PICTURES, notebook._PICTURES)
    assert len(images(view_of(of, store, pictures=3))) == 3
    store.asked.clear()
    assert images(view_of(of, store, pictures=0)) == []
    assert store.asked == []
    assert "not shown without client=" in view_of(of, None).text
    # the sums of a view; a picture that does not fit leaves room for a smaller one
    large = [png_header(6000, 5000), png_header(5000, 4000), *small[:2]]
    page = view_of(pictured(*large), Store(large))
    assert [(one["alt"] or "").split(" pixels")[0] for one in images(page)] == [
        "picture, 6,000 x 5,000",
        "picture, 10 x 10",
        "picture, 10 x 11",
    ]
    monkeypatch.setattr(notebook, "_BYTES", len(small[0]) + 10)
    store = Store(small)
    page = view_of(of, store)
    assert (len(images(page)), len(store.asked)) == (1, 1)
    assert page.text.count("too many bytes") == len(small) - 1
    # the declared number of bytes is wrong
    of["images"][0]["bytes"] = 1
    monkeypatch.setattr(notebook, "_BYTES", len(small[0]) - 1)
    page = view_of({**of, "images": of["images"][:1]}, Store(small))
    assert images(page) == []
    assert "too many bytes" in page.text


def test_picture_that_cannot_be_read_says_why() -> None:
    file = picture("PNG", 4, 4)
    of = pictured(file, file)
    store = Store([file])
    store.failure = HttpError("no picture", status=404)
    page = view_of(of, store)
    assert len(store.asked) == 2
    assert "not read (no picture" in page.text
    # without a reply the next one would wait as long
    store.failure = ConnectionFailed("refused")
    store.asked.clear()
    page = view_of(of, store)
    assert len(store.asked) == 1
    assert images(page) == []
    of["images"][0]["available"] = False
    assert "not available" in view_of(of, store).text


@pytest.mark.parametrize(
    "change",
    [
        {"sha256": "../../x"},
        {"sha256": "\ud800"},
        {"sha256": None},
        {"bytes": "<b>"},
        {"bytes": None},
        {"start": -5},
        {"start": 10**9, "end": 10**9 + 1},
        {"end": 10**9},
        {"end": "x"},
        {"start": 5, "end": 5},
        {"media_type": "<script>\ud800"},
        {"available": "yes"},
    ],
)
def test_pictures_of_a_damaged_file_are_text(change: dict[str, Any]) -> None:
    file = picture("PNG", 4, 4)
    of, store = pictured(file, file, tokens=9), Store([file])
    of["images"][0].update(change)
    page = view_of(of, store)
    assert all(re.fullmatch("[0-9a-f]{64}", sha256) for sha256 in store.asked)
    assert len(images(page)) == 1, "the other picture is shown"
    assert page.runs[-1][1].startswith("ttt"), "no token is hidden"
    of["session"] = "../other\ud800"
    asked = len(store.asked)
    view_of(of, store)
    assert len(store.asked) == asked, "no request for a name that is none"


def test_only_the_standard_library_is_imported() -> None:
    code = "import sys, tokentap.notebook, tokentap.plot; print({'numpy', 'matplotlib', 'IPython'} & set(sys.modules))"
    root = Path(tokentap.__file__).parents[1]
    found = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert found.stdout == "set()\n"


def test_ids_that_are_no_numbers_are_escaped() -> None:
    segments = [{"turn": 0, "kind": "response", "start": 0, "end": 1, "loss_mask": 1}]
    broken = {
        "session": "s",
        "leaf": 0,
        "segments": segments,
        "token_ids": ["<img src=x>"],
        "entropy": [1.0],
        "turns": [],
    }
    assert "<img" not in notebook.tokens(broken).html
