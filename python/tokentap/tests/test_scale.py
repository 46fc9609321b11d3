# SPDX-License-Identifier: Apache-2.0
"""The scale and the colours, compared with those of the page."""

from __future__ import annotations

import math
import re
from types import SimpleNamespace

import pytest
from conftest import ROOT

from tokentap import _scale as scale

PAGE = ROOT / "src" / "serve" / "control" / "page"
JS = (PAGE / "scale.js").read_text()
CSS = (PAGE / "tokens.css").read_text()


def constant(name: str) -> int:
    found = re.search(rf"export const {name} = (\d+);", JS)
    assert found, name
    return int(found[1])


def formula(function: str, argument: str) -> str:
    """The last expression that a function of scale.js returns, which is valid Python, too."""
    body = re.search(rf"export function {function}\({argument}\) \{{(.*?)\n\}}", JS, re.DOTALL)
    assert body, function
    return re.findall(r"return ([^;]+);", body[1])[-1]


# Math of JavaScript; its round() rounds half up
MATH = SimpleNamespace(round=lambda x: math.floor(x + 0.5), sqrt=math.sqrt, min=min)
NAMES = {"Math": MATH, "STEPS": constant("STEPS"), "MOST": constant("MOST")}


def test_steps_are_those_of_the_page() -> None:
    assert constant("STEPS") == scale.STEPS
    assert constant("MOST") == scale.MOST
    expression = formula("step", "nats")
    edges = [scale.nats(at + half) for at in range(scale.STEPS) for half in (0.0, 0.499, 0.501)]
    for value in [*edges, *(at / 1000 for at in range(6000)), 1e-12, 1e6, math.inf]:
        assert scale.step(value) == eval(expression, {**NAMES, "nats": value}), value
    for at in range(scale.STEPS):
        assert scale.nats(at) == pytest.approx(eval(formula("nats", "at"), {**NAMES, "at": at}))
    assert "if (!(nats >= 0)) return -1;" in JS
    assert [scale.step(value) for value in (math.nan, -0.1)] == [-1, -1]


def test_colours_are_those_of_the_page() -> None:
    declared = re.findall(r"--(\w+): light-dark\(oklch\(([\d. ]+)\), oklch\(([\d. ]+)\)\);", CSS)
    page = {name: tuple(tuple(map(float, one.split())) for one in both) for name, *both in declared}
    assert page == scale.COLOURS
    mixed = "color-mix(in oklch, var(--low), var(--high) calc(var(--e) * 100% / 23))"
    assert mixed in CSS, "ramp() mixes low and high in OKLCH"


def test_bars_are_those_of_the_page() -> None:
    steps = re.findall(r"\.e(\d+) \{ --e: (\d+);(?: --w: (\d+);)? \}", CSS)
    assert len(steps) == scale.STEPS
    for name, at, height in steps:
        assert (name, scale.bar(int(at))) == (at, int(height or 0))


@pytest.mark.parametrize("dark", [False, True])
def test_ramp_has_even_lightness(dark: bool) -> None:
    """The luminance, computed from the sRGB numbers, changes in one direction."""

    def luminance(hex: str) -> float:
        parts = [int(hex[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    found = [luminance(one) for one in scale.ramp(dark=dark)]
    assert found == sorted(found, reverse=not dark)
    assert len(set(found)) == scale.STEPS


def test_white_and_black_are_converted() -> None:
    assert scale._hex(1, 0, 0) == "#ffffff"
    assert scale._hex(0, 0, 0) == "#000000"
    # pure red, https://www.w3.org/TR/css-color-4/#ok-lab
    assert scale._hex(0.62796, 0.25768, 29.234) == "#ff0000"


def test_numbers_are_formatted_as_on_the_page() -> None:
    assert [scale.shown(value) for value in (0, 1.23456, 0.0005, -0.0001234)] == ["0.000", "1.235", "5.0e-4", "-1.2e-4"]
    assert [scale.shown(value) for value in (math.nan, math.inf, None)] == ["\u2013"] * 3
