"""The options of a read or write, checked: known names, values of the right kind, combinations that mean something.

Touches  nothing. Spark hands options over as texts, their names without regard to case.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Final

from pyspark_aerobee.errors import OptionError
from pyspark_aerobee.names import nearest

__all__ = ["Options", "parse_bytes", "parse_duration_ms", "parse_time_ms"]

_TRUE, _FALSE = frozenset({"true", "1", "yes"}), frozenset({"false", "0", "no"})
_DURATION: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|min|h|d)?", re.ASCII)
_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)i?b?", re.ASCII | re.IGNORECASE)
_POWERS: Final = {"": 0, "k": 10, "m": 20, "g": 30, "t": 40}


class Options:
    """Options by name, whatever its case. What is asked for is marked as known; `close` refuses the others."""

    def __init__(self, given: Mapping[str, str], known: Iterable[str]) -> None:
        self._known = {name.lower(): name for name in known}
        self._values = {name.lower(): str(value) for name, value in given.items()}
        for name in given:
            if name.lower() not in self._known:
                raise OptionError(
                    name, str(given[name]), f"there is no such option{nearest(name, self._known.values())}"
                )

    def __contains__(self, name: str) -> bool:
        return name.lower() in self._values

    def text(self, name: str, default: str | None = None) -> str | None:
        """The value as it was given."""
        assert name.lower() in self._known, name
        return self._values.get(name.lower(), default)

    def required(self, name: str, why: str) -> str:
        """The value; OptionError when it was not given."""
        value = self.text(name)
        if not value:
            raise OptionError(name, "", why)
        return value

    def choice(self, name: str, allowed: Iterable[str], default: str) -> str:
        """One of the allowed words, in their spelling."""
        value = self.text(name, default) or default
        words = {one.lower(): one for one in allowed}
        found = words.get(value.lower())
        if found is None:
            raise OptionError(
                name, value, f"it must be one of: {', '.join(words.values())}{nearest(value, words.values())}"
            )
        return found

    def flag(self, name: str, default: bool) -> bool:
        """true or false."""
        value = self.text(name)
        if value is None:
            return default
        if value.lower() in _TRUE:
            return True
        if value.lower() in _FALSE:
            return False
        raise OptionError(name, value, "it must be true or false")

    def count(self, name: str, default: int | None = None, *, least: int = 1) -> int | None:
        """A whole number that is not smaller than `least`."""
        value = self.text(name)
        if value is None:
            return default
        try:
            number = int(value)
        except ValueError:
            raise OptionError(name, value, "it must be a whole number") from None
        if number < least:
            raise OptionError(name, value, f"it must be at least {least}")
        return number

    def size(self, name: str, default: int | None = None) -> int | None:
        """A number of bytes: 1048576, 512k, 64m, 1g."""
        value = self.text(name)
        return default if value is None else parse_bytes(name, value)

    def duration_ms(self, name: str, default: int | None = None) -> int | None:
        """A time span in ms: 1500ms, 30s, 15m, 2h, 7d; a bare number is milliseconds."""
        value = self.text(name)
        return default if value is None else parse_duration_ms(name, value)

    def words(self, name: str) -> tuple[str, ...]:
        """Comma-separated words without the blanks around them; empty when not given."""
        value = self.text(name)
        return tuple(word.strip() for word in value.split(",") if word.strip()) if value else ()

    def only_one_of(self, *names: str) -> str | None:
        """The name of the one that was given, None when none was. OptionError for two."""
        given = [name for name in names if name in self]
        if len(given) > 1:
            raise OptionError(given[1], self.text(given[1]) or "", f"it cannot be combined with {given[0]}")
        return given[0] if given else None


def parse_bytes(name: str, value: str) -> int:
    """`64m` as 67108864."""
    found = _SIZE.fullmatch(value.strip())
    if found is None:
        raise OptionError(name, value, "it must be a number of bytes, for example 1048576, 512k, 64m or 1g")
    return int(float(found[1]) * (1 << _POWERS[found[2].lower()]))


def parse_duration_ms(name: str, value: str) -> int:
    """`15m` as 900000; Spark's `15 minutes` too."""
    text = (
        value.strip()
        .lower()
        .removesuffix("utes")
        .removesuffix("ute")
        .removesuffix("econds")
        .removesuffix("econd")
    )
    text = text.removesuffix("ours").removesuffix("our").removesuffix("ays").removesuffix("ay")
    found = _DURATION.fullmatch(text)
    if found is None:
        raise OptionError(name, value, "it must be a time span, for example 500ms, 30s, 15m, 2h or 7d")
    return round(float(found[1]) * _MS[found[2] or "ms"])


def parse_time_ms(name: str, value: str, now_ms: int) -> int:
    """A moment as ms since the epoch: such a number, ISO 8601 (UTC without a zone), or a span before now (`-1h`)."""
    text = value.strip()
    if text.startswith("-"):
        return now_ms - parse_duration_ms(name, text[1:])
    if text.isascii() and text.isdecimal() and len(text) > 8:
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise OptionError(
            name,
            value,
            "it must be ms since the epoch, an ISO 8601 time (2026-01-31T08:00:00Z) or a span such as -1h",
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000)
