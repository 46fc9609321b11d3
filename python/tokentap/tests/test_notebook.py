"""The HTML of notebooks: well formed, without scripts, escaped, and bounded in size."""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from conftest import Demo
from test_entropies import END, PROMPT, START, path

import tokentap
from tokentap import Client, notebook
from tokentap.glyphs import glyphs
from tokentap.scale import ABSENT
from tokentap.texts import Texts


class Page(HTMLParser):
    """The elements of a view; fails for elements that do not nest."""

    VOID = ("path", "rect")

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
    "div", "style", "span", "strong", "p", "figure", "figcaption", "svg", "path", "rect", "text", "title",
}  # fmt: skip

HOSTILE = [
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "</span></div><style>*{display:none}</style>",
    "&lt;script&gt;", "'-alert(1)-'", "<!--", "]]>", "</style>", "\u202egnp.exe", "\x00\x1b[31m", "\ud800", "a" * 5000,
]  # fmt: skip


def check(html: str) -> Page:
    """Parses a view and checks that it is self-contained."""
    page = Page(html)
    assert {tag for tag, _ in page.elements} <= ALLOWED
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href", "style")]
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
        began = time.perf_counter()
        html = notebook.show(of, think=(START, END)).html
        times.append(time.perf_counter() - began)
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
