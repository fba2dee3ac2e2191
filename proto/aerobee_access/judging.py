"""What is known of sends and pulls that nobody reads as requests, and what is said of each of them.

Touches  nothing.

Those of one kind (request code, AccessKey, topic and group) of one connection have one judgement, made by the rules of
the gate. The signature of each of them is checked, and whether it was seen before, as for all other requests.

What a reader asks again and again differs in a few values alone; what its signatures cover is worked out once, with
places for those (`asked_again`).

Invariants
- A yes is what `Gate.admit` says, too. What is no yes leaves no trace.
"""

from collections.abc import Callable, Mapping
from typing import Final, NamedTuple, cast

from aerobee_access.freshness import Freshness, NotFresh, Numbers
from aerobee_access.signature import ACCESS_KEY, UNIQUE_KEY_QUERY, fields_of, is_signature, signed_content
from aerobee_proto.frames import Frame
from aerobee_remoting.exchange.gate import Asked, Judging

__all__ = ["JUDGEMENTS_MAX", "AskedAgain", "Judgement", "asked_again", "judging_by"]

JUDGEMENTS_MAX: Final = 4_096  # kept for one connection; at the bound they are made anew
FIELDS_MAX: Final = 64  # of what is asked again; gates bound those of other requests
PLACE: Final = "\0"  # no value that is signed here has it


class Judgement(NamedTuple):
    """What is to be said of requests of one kind."""

    user: str
    key: bytes | None  # of their signatures; None: they need none
    is_let_in: bool  # those that are signed with it


def judging_by(
    kept: dict[Asked, Judgement],
    find: Callable[[Asked], Judgement | None],
    freshness: Freshness | None,
    numbers: Numbers | None,
    *,
    may_keep: Callable[[], bool] = lambda: True,
) -> Judging:
    """For the requests of one read. `kept` has the judgements of its connection, `find` makes others; None: `admit` has
    more to do for such a request than to look up. `numbers` are those of the connection, where they are looked at.
    `may_keep`: whether there is room for one more."""

    def judge(asked: Asked, signature: bytes | None, content: bytes, body: bytes) -> bool:
        found = kept.get(asked)
        if found is None:
            try:
                found = find(asked)
            except Exception:  # `admit` meets it as well, and it is told there
                return False
            if found is None:
                return False
            if len(kept) >= JUDGEMENTS_MAX:
                kept.clear()
            if may_keep():
                kept[asked] = found
        user, key, is_let_in = found
        if key is None:
            return is_let_in
        # First, and for a user that is not there as well: how long it takes says nothing.
        is_signed = is_signature(signature or b"", content + body, key)
        if not (is_signed and is_let_in):
            return False
        if freshness is not None and numbers is not None:
            try:
                freshness.check(numbers, user, asked[0], content)
            except NotFresh:
                return False
        return True

    if numbers is None:
        return Judging(judge, _nothing, lambda _: None)
    return Judging(judge, numbers.mark, cast("Callable[[object], None]", numbers.go_back))


def _nothing() -> None:
    return


class AskedAgain(NamedTuple):
    """A request that comes again and again, but for a few values."""

    asked: Asked
    # What signatures cover of the header; `%` puts in those of the values that such a request has.
    content: bytes


def asked_again(
    frame: Frame, code: int, version: int, names: Mapping[str, str], places: Mapping[str, bytes]
) -> AskedAgain | None:
    """How such requests are judged. `names` has topic and group, in this order, by the fields that name them; `places`
    the fields that differ, in the order of their names, and how `%` writes each. None: in some way it is unusual."""
    fields = fields_of(frame)
    if not fields or len(fields) > FIELDS_MAX or UNIQUE_KEY_QUERY in fields:
        return None
    if any(fields.get(name) != value for name, value in names.items()):
        return None  # what is empty may be read in two ways
    access_key = fields.get(ACCESS_KEY)
    differing = [places[name] for name in places if name in fields]
    try:
        content = signed_content(fields | dict.fromkeys(places.keys() & fields.keys(), PLACE), version)
        topic, group = (name.encode() for name in names.values())
        asked = code, None if access_key is None else access_key.encode(), topic, group
    except UnicodeEncodeError:
        return None
    first, *rest = content.replace(b"%", b"%%").split(PLACE.encode())
    if len(rest) != len(differing):
        return None
    return AskedAgain(asked, first + b"".join([b"".join(two) for two in zip(differing, rest, strict=True)]))
