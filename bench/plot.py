"""A plot of lines as SVG: sizes in powers of ten to the right, ratios upwards. Nothing to install for it.

Touches  nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape

__all__ = ["Series", "lines"]

WIDTH, HEIGHT = 720, 400
LEFT, RIGHT, TOP, BOTTOM = 60, 140, 40, 50
COLOURS = ("#4269d0", "#efb118", "#ff725c", "#3ca951", "#a463f2")


@dataclass(slots=True, frozen=True)
class Series:
    """One line: (size, value), the sizes above 0 and rising."""

    name: str
    points: list[tuple[float, float]]


def lines(title: str, series: list[Series]) -> str:
    """The whole SVG."""
    every = [point for one in series for point in one.points]
    decades = max(1, math.ceil(math.log10(max((size for size, _ in every), default=10.0))))
    top = max(1.5, math.ceil(2 * max((value for _, value in every), default=1.0)) / 2)

    def x(size: float) -> float:
        return LEFT + math.log10(size) / decades * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="{TOP - 15}" font-size="14">{escape(title)}</text>',
    ]
    for decade in range(decades + 1):
        at = x(10.0**decade)
        parts.append(f'<path d="M{at:.1f} {y(0):.1f}V{y(top):.1f}" stroke="#ddd"/>')
        parts.append(
            f'<text x="{at:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{10**decade:,}</text>'
        )
    for half in range(int(2 * top) + 1):
        at = y(half / 2)
        parts.append(f'<path d="M{LEFT} {at:.1f}H{WIDTH - RIGHT}" stroke="#ddd"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{half / 2:g}</text>')
    for number, one in enumerate(series):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join([f"{x(size):.1f},{y(value):.1f}" for size, value in one.points])
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [
            f'<circle cx="{x(size):.1f}" cy="{y(value):.1f}" r="3" fill="{colour}"/>'
            for size, value in one.points
        ]
        at = TOP + 18 * number
        parts.append(f'<text x="{WIDTH - RIGHT + 12}" y="{at}" fill="{colour}">{escape(one.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])
