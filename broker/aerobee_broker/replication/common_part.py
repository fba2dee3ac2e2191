"""Where two logs part, found by comparing pieces of them.

Touches  nothing: the caller compares.

Two copies of a log are the same up to where they part, and no bytes behind that are: a record carries its place and its
time. So whether the last bytes before a place are the same tells whether all before it are, and the place is found by
halving. It is sought from the end backwards, in steps that grow: what differs is most often little and new, and a
damaged place in an old part of one log is not taken for the parting.

Invariants
- In one round at most RANGES_MAX ranges are compared, each of at most WINDOW_SIZE bytes.
- The rounds are as many as the digits of the size of the common part, to the base of FAN: 6 for a terabyte.
"""

from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

__all__ = ["WINDOW_SIZE", "Borders", "Same", "common_end_by_bytes", "window_before"]

WINDOW_SIZE: Final = 64 << 10  # bytes
FAN: Final = 32

Range = tuple[int, int]


class Same(NamedTuple):
    """Which of these ranges of physical offsets [begin, end) are the same in both logs? To be answered with a list."""

    ranges: list[Range]


class Borders(NamedTuple):
    """Where do messages of the own log begin or end in [begin, end], and last before it? To be answered with a rising
    list."""

    begin: int
    end: int


Search = Generator[Same | Borders, Sequence[bool] | Sequence[int], int]


def window_before(begin: int, end: int) -> Range:
    """The last bytes below `end` that are compared, of a log that begins at `begin`."""
    return max(begin, end - WINDOW_SIZE), end


def common_end_by_bytes(begin: int, end: int, window_size: int = WINDOW_SIZE) -> Search:
    """The last border of the own log up to which both are the same, of those in [begin, end]; both have these bytes.
    `begin`, where a file begins, if they have nothing in common."""
    same = yield Same([_window(begin, end, window_size)])
    if same[0]:
        return end
    equal, differs = yield from _gallop(begin, end, window_size)
    while differs - equal > window_size:
        step = -(-(differs - equal) // (FAN + 1))
        places = list(range(equal + step, differs, step))
        same = yield Same([_window(begin, place, window_size) for place in places])
        count = _leading_true(same)
        if count < len(places):
            differs = places[count]
        if count:
            equal = places[count - 1]
    return (yield from _exact(begin, equal, differs))


def _gallop(begin: int, end: int, window_size: int) -> Generator[Same, Sequence[bool], Range]:
    """A place up to which both are the same, and one behind it where they are not."""
    places = []
    step = window_size
    while end - step > begin:
        places.append(end - step)
        step *= 2
    if not places:
        return begin, end
    same = yield Same([_window(begin, place, window_size) for place in places])
    number = next((number for number, is_same in enumerate(same) if is_same), len(places))
    equal = places[number] if number < len(places) else begin
    return equal, places[number - 1] if number else end


def _exact(begin: int, equal: int, differs: int) -> Search:
    """The border itself: the furthest up to which nothing differs."""
    borders = yield Borders(equal, differs)
    last = max((border for border in borders if border <= equal), default=begin)
    behind = [border for border in borders if equal < border < differs]
    while behind:
        chosen = behind[:: max(len(behind) // FAN, 1)][:FAN]
        same = yield Same([(equal, border) for border in chosen])
        count = _leading_true(same)
        if count:
            last = chosen[count - 1]
        limit = chosen[count] if count < len(chosen) else differs
        behind = [border for border in behind if last < border < limit]
    return last


def _window(begin: int, end: int, size: int) -> Range:
    return max(begin, end - size), end


def _leading_true(flags: Sequence[bool] | Sequence[int]) -> int:
    return next((number for number, flag in enumerate(flags) if not flag), len(flags))
