"""The page of an audit.

Touches  nothing: a report in, text out.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from pyspark_aerobee.jobs.pages import bars, columns, figures, page, table, time_text

__all__ = ["audit_page"]

_UNITS: Final = ("B", "KiB", "MiB", "GiB")
_BAD: Final = ("damaged stretches", "gaps in queues", "ids used twice")
_SHOWN_MAX: Final = 200
_DAMAGE: Final = "Bytes of the log that hold no record that can be proven."
_GAPS: Final = "Numbers of queues that no message has; `end` is not missing any more."


def audit_page(report: Mapping[str, Any]) -> str:
    """One HTML file."""
    found = report["findings"]
    verdict = "Nothing is wrong." if not any(found.values()) else "There are findings."
    span = f"{time_text(report['begin_ms'])} to {time_text(report['end_ms'])} UTC"
    exact = (
        ""
        if report["top_is_exact"]
        else "There were too many to count all: those shown may be a little short."
    )
    hours = [(time_text(one["begin_ms"])[5:16], one["messages"]) for one in report["hours"]]
    sizes = [(f"< {_size(one['below'])}", one["messages"]) for one in report["body_sizes"]]
    return page(
        f"Audit of {report['source']}",
        f"{verdict} Messages stored {span}.",
        [
            figures(
                {
                    "messages": report["messages"],
                    "bytes of bodies": report["body_bytes"],
                    "the system's own": report["system_messages"],
                    "damaged stretches": found["damaged_stretches"],
                    "gaps in queues": found["gaps"],
                    "ids used twice": found["duplicated_ids"],
                },
                _BAD,
            ),
            columns("Messages by hour", hours),
            columns("Sizes of bodies", sizes),
            bars("Topics", [(one["topic"], one["messages"]) for one in report["topics"][:40]]),
            bars("Most frequent tags", _named(report["top_tags"]), exact),
            bars("Most frequent keys", _named(report["top_keys"]), exact),
            table("Damage", report["damage"][:_SHOWN_MAX], _DAMAGE),
            table("Gaps", report["gaps"][:_SHOWN_MAX], _GAPS),
            table("Ids used twice", [_flat(one) for one in report["duplicates"][:_SHOWN_MAX]]),
        ],
    )


def _named(top: Sequence[Mapping[str, Any]]) -> list[tuple[str, int]]:
    return [(f"{one['topic']}: {one['text']}", one["messages"]) for one in top]


def _flat(one: Mapping[str, Any]) -> dict[str, Any]:
    places = {
        name: f"queue {one[name]['queueId']}, number {one[name]['queueOffset']}" for name in ("first", "last")
    }
    return {**one, **places}


def _size(count: int) -> str:
    power = min((count.bit_length() - 1) // 10, len(_UNITS) - 1)
    return f"{count >> (10 * power)} {_UNITS[power]}"
