# SPDX-License-Identifier: Apache-2.0
"""The colours of entropies: the steps and colours of tokentap's page, for `notebook` and `plot`."""

from __future__ import annotations

import math

STEPS = 24
"""The number of colour steps."""

MOST = 4
"""The nats of the last step; higher entropies have the same colour."""

# Each colour in OKLCH (lightness, chroma, hue in degrees), for a light and for a dark background.
COLOURS = {
    "ground": ((0.985, 0.003, 90), (0.19, 0.008, 260)),
    "panel": ((1, 0, 0), (0.225, 0.009, 260)),
    "ink": ((0.24, 0.015, 260), (0.93, 0.006, 260)),
    "quiet": ((0.47, 0.015, 260), (0.72, 0.012, 260)),
    "line": ((0.9, 0.006, 260), (0.32, 0.01, 260)),
    "accent": ((0.47, 0.13, 255), (0.76, 0.11, 250)),
    "alarm": ((0.5, 0.17, 25), (0.74, 0.14, 25)),
    "low": ((0.975, 0.012, 95), (0.255, 0.015, 80)),
    "high": ((0.715, 0.16, 48), (0.5, 0.13, 42)),
    "bar": ((0.42, 0.13, 38), (0.86, 0.11, 75)),
}


def step(nats: float) -> int:
    """The step of an entropy; -1 for NaN and negative numbers. The square root spreads the many small entropies."""
    if not nats >= 0:
        return -1
    return math.floor(math.sqrt(min(nats, MOST) / MOST) * (STEPS - 1) + 0.5)


def nats(at: float) -> float:
    """The nats of a step."""
    return (at / (STEPS - 1)) ** 2 * MOST


def bar(at: int) -> int:
    """The height in pixels of the bar under a token of this step, which shows the entropy without colour."""
    return at // 3 - 3 if at >= 12 else 0


def colour(name: str, *, dark: bool = False) -> str:
    """A colour as `#rrggbb`."""
    return _hex(*COLOURS[name][dark])


def ramp(*, dark: bool = False) -> list[str]:
    """The colours of the steps as `#rrggbb`."""
    low, high = COLOURS["low"][dark], COLOURS["high"][dark]
    mixed = [[a + (b - a) * at / (STEPS - 1) for a, b in zip(low, high, strict=True)] for at in range(STEPS)]
    return [_hex(*parts) for parts in mixed]


ABSENT = "\u2013"
"""What is shown instead of an absent number: an en dash, as on the page."""


def shown(value: float | None, digits: int = 3) -> str:
    """Formats a number; an absent one is `ABSENT`."""
    if value is None or not math.isfinite(value):
        return ABSENT
    if value != 0 and abs(value) < 10**-digits:
        mantissa, exponent = f"{value:.1e}".split("e")
        return f"{mantissa}e{int(exponent)}"
    return f"{value:.{digits}f}"


def _hex(lightness: float, chroma: float, hue: float) -> str:
    """OKLCH as sRGB (https://www.w3.org/TR/css-color-4/#color-conversion-code), clipped to its gamut."""
    a, b = chroma * math.cos(math.radians(hue)), chroma * math.sin(math.radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    middle = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    linear = (
        4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * middle + 1.7076147010 * short,
    )
    return "#" + "".join(f"{round(255 * _gamma(min(1.0, max(0.0, part)))):02x}" for part in linear)


def _gamma(linear: float) -> float:
    return float(12.92 * linear if linear <= 0.0031308 else 1.055 * linear ** (1 / 2.4) - 0.055)
