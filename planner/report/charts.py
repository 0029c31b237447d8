"""Charts: inline SVG in the page's colours, readable at 400 pixels and in the dark. No numbers are made here."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape

from planner.report.layout import few_digits

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 68, 20, 16, 48
COLOURS = 10  # the stylesheet's classes c0 to c9
MOST_TICKS = 8


@dataclass(frozen=True, slots=True)
class Point:
    """One mark: where, of which series, and what it says when pointed at."""

    x: float
    y: float
    series: str
    label: str


def scatter(points: Sequence[Point], front: Sequence[Point], x_title: str, y_title: str) -> str:
    """Points on logarithmic axes, the front joined by a line. Empty without points."""
    return _chart(points, [front] if len(front) > 1 else [], x_title, y_title, "front")


def lines(points: Sequence[Point], x_title: str, y_title: str) -> str:
    """One line a series on logarithmic axes. Empty without points."""
    names = dict.fromkeys(point.series for point in points)
    joined = [sorted((p for p in points if p.series == name), key=lambda p: p.x) for name in names]
    return _chart(points, joined, x_title, y_title, "", sorted({point.x for point in points}))


def _chart(
    points: Sequence[Point],
    joined: Sequence[Sequence[Point]],
    x_title: str,
    y_title: str,
    line_class: str,
    given_ticks: Sequence[float] = (),
) -> str:
    if not points:
        return ""
    x_at, x_ticks = _axis([p.x for p in points], LEFT, WIDTH - RIGHT)
    x_ticks = given_ticks if 0 < len(given_ticks) <= MOST_TICKS else x_ticks
    y_at, y_ticks = _axis([p.y for p in points], HEIGHT - BOTTOM, TOP)
    colour = {name: f"c{at % COLOURS}" for at, name in enumerate(dict.fromkeys(p.series for p in points))}
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{y_title} against {x_title}")}">']
    for value in x_ticks:
        x = x_at(value)
        parts.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{_tick(value)}</text>')
    for value in y_ticks:
        y = y_at(value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{_tick(value)}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="title" x="{middle}" y="{HEIGHT - 8}" text-anchor="middle">{escape(x_title)}</text>')
    parts.append(
        f'<text class="title" transform="translate(14 {(TOP + HEIGHT - BOTTOM) / 2}) rotate(-90)" '
        f'text-anchor="middle">{escape(y_title)}</text>'
    )
    for group in joined:
        path = " ".join(f"{x_at(p.x):.1f},{y_at(p.y):.1f}" for p in group)
        parts.append(f'<polyline class="{line_class or colour[group[0].series]}" points="{path}"/>')
    for p in points:
        parts.append(
            f'<circle class="{colour[p.series]}" cx="{x_at(p.x):.1f}" cy="{y_at(p.y):.1f}" r="5">'
            f"<title>{escape(p.label)}</title></circle>"
        )
    parts.append("</svg>")
    keys = "".join(f'<li><span class="key {of}"></span>{escape(name)}</li>' for name, of in colour.items())
    return f'{"".join(parts)}<ul class="keys">{keys}</ul>'


def _axis(values: Sequence[float], first: float, last: float) -> tuple[Callable[[float], float], Sequence[float]]:
    """A logarithmic axis: the function from value to pixel, and ticks at 1, 2 and 5 of each decade."""
    low, high = min(values) / 1.15, max(values) * 1.15
    span = math.log(high / low)

    def at(value: float) -> float:
        return first + (last - first) * math.log(value / low) / span

    ticks = [
        base * 10.0**power
        for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        for base in (1, 2, 5)
        if low <= base * 10.0**power <= high
    ]
    if len(ticks) > MOST_TICKS:
        ticks = [tick for tick in ticks if f"{tick:e}"[0] == "1"]
    return at, ticks if len(ticks) > 1 else sorted({min(values), max(values)})


def _tick(value: float) -> str:
    for factor, letter in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.3g}{letter}"
    return f"{value:g}" if len(f"{value:g}") < 6 else few_digits(value)


__all__ = ["Point", "lines", "scatter"]
