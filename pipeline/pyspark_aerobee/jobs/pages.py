"""Pages of reports: one self-contained HTML file, plots drawn as SVG in it; no script, nothing is loaded.

Touches  nothing: texts in, text out. Whatever comes from messages is quoted.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any, Final

__all__ = ["bars", "columns", "figures", "page", "table", "time_text"]

_STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;margin:2rem auto;max-width:64rem;padding:0 1rem;color:#1f2328;background:#fff}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2rem 0 .5rem}.note{color:#59636e}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(11rem,1fr));gap:.75rem;margin:1rem 0}
dt{color:#59636e;font-size:.85rem}dd{margin:0;font-size:1.25rem;font-variant-numeric:tabular-nums}
dd.bad{color:#b42318}
table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.25rem .75rem .25rem 0;border-bottom:1px solid #d8dee4;word-break:break-word}
.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto;display:block}svg text{font:12px system-ui,sans-serif;fill:#1f2328}
svg .axis{fill:#59636e}svg rect{fill:#2f6f9f}svg rect.track{fill:#eef2f5}svg line{stroke:#d8dee4}
@media(prefers-color-scheme:dark){
body{background:#14181d;color:#e4e8ec}svg text{fill:#e4e8ec}.note,dt,svg .axis{color:#98a3ad;fill:#98a3ad}
th,td{border-color:#333b43}svg rect.track{fill:#232a31}svg rect{fill:#5aa0d0}svg line{stroke:#333b43}
dd.bad{color:#ff8d7e}
}
"""
_WIDTH: Final = 900


def page(title: str, subtitle: str, parts: Sequence[str]) -> str:
    """A whole page."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>\n"
        f'<h1>{escape(title)}</h1><p class="note">{escape(subtitle)}</p>\n'
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def figures(values: Mapping[str, Any], bad: Sequence[str] = ()) -> str:
    """Single figures with their names; those that are `bad` stand out when they are not 0."""
    cells = [
        f"<div><dt>{escape(name)}</dt><dd{' class=bad' if name in bad and value else ''}>{_shown(value)}</dd></div>"
        for name, value in values.items()
    ]
    return f"<dl>{''.join(cells)}</dl>"


def table(title: str, rows: Sequence[Mapping[str, Any]], note: str = "") -> str:
    """Rows with the names of the first as head; nothing for no rows."""
    if not rows:
        return ""
    names = list(rows[0])
    head = "".join(f"<th{_aligned(rows[0][name])}>{escape(name.replace('_', ' '))}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td{_aligned(row[name])}>{_shown(row[name])}</td>" for name in names) + "</tr>"
        for row in rows
    )
    return f"{_head(title, note)}<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def bars(title: str, values: Sequence[tuple[str, int]], note: str = "") -> str:
    """Horizontal bars with names in front, largest value full width."""
    if not values:
        return ""
    largest = max(value for _, value in values) or 1
    left, right, step = 240, 110, 24
    room = _WIDTH - left - right
    parts = []
    for number, (name, value) in enumerate(values):
        y = number * step
        shown = name if len(name) <= 34 else f"{name[:33]}…"
        parts.append(
            f'<text x="{left - 8}" y="{y + 16}" text-anchor="end"><title>{escape(name)}</title>{escape(shown)}</text>'
            f'<rect class="track" x="{left}" y="{y + 4}" width="{room}" height="16"/>'
            f'<rect x="{left}" y="{y + 4}" width="{max(room * value / largest, 1):.1f}" height="16"/>'
            f'<text class="axis" x="{left + room + 8}" y="{y + 16}">{value:,}</text>'
        )
    return _head(title, note) + _svg(len(values) * step, title, parts)


def columns(title: str, values: Sequence[tuple[str, int]], note: str = "") -> str:
    """Columns side by side, with names below as many as have room."""
    if not values:
        return ""
    largest = max(value for _, value in values) or 1
    height, below, left = 200, 24, 80
    width = (_WIDTH - left) / len(values)
    every = max(-(-len(values) // 12), 1)
    parts = [
        f'<line x1="{left}" x2="{_WIDTH}" y1="{10 + height * (1 - share)}" y2="{10 + height * (1 - share)}"/>'
        f'<text class="axis" x="{left - 8}" y="{14 + height * (1 - share)}" text-anchor="end">'
        f"{round(largest * share):,}</text>"
        for share in (0, 0.5, 1)
    ]
    for number, (name, value) in enumerate(values):
        tall = height * value / largest
        x = left + number * width
        parts.append(
            f'<rect x="{x:.1f}" y="{10 + height - tall:.1f}" width="{max(width - 1, 0.5):.1f}" height="{tall:.1f}">'
            f"<title>{escape(name)}: {value:,}</title></rect>"
        )
        if number % every == 0:
            parts.append(f'<text class="axis" x="{x:.1f}" y="{height + 28}">{escape(name)}</text>')
    return _head(title, note) + _svg(height + below + 12, title, parts)


def time_text(epoch_ms: int | None) -> str:
    """A moment for people, UTC."""
    if epoch_ms is None:
        return "-"
    return datetime.fromtimestamp(epoch_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _svg(height: float, title: str, parts: Sequence[str]) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}">{"".join(parts)}</svg>'


def _head(title: str, note: str) -> str:
    return f"<h2>{escape(title)}</h2>" + (f'<p class="note">{escape(note)}</p>' if note else "")


def _aligned(value: Any) -> str:
    return ' class="n"' if isinstance(value, int | float) else ""


def _shown(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return escape("-" if value is None else str(value))
    return f"{value:,}"
