"""Requests that count once: which numbers are taken, what who is late is told, what a thief can do with a request."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from access.support import Caller
from aerobee_access.freshness import BEHIND_MAX, CHALLENGE, Freshness, NotFresh, Numbers, Signing
from aerobee_access.signature import ACCESS_KEY, FRESHNESS, SIGNATURE, signed_content, signed_with
from aerobee_proto.headers import TopicHeader
from aerobee_remoting.exchange.connection import READ_AHEAD
from aerobee_remoting.exchange.gate import Row
from system.worst_requests import ordinary_fields

CODE, NOW_MS, WINDOW_MS = 310, 1_700_000_000_000, 60_000


class Clock:
    """Milliseconds that a test moves."""

    def __init__(self) -> None:
        self.now_ms = NOW_MS

    def __call__(self) -> int:
        return self.now_ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def freshness(clock: Clock) -> Freshness:
    return Freshness(clock, window_ms=WINDOW_MS, is_required_of=lambda user: user == "strict")


def contents(numbers: Numbers, clock: Clock, count: int = 1, user: str = "u") -> list[bytes]:
    """What is signed of so many requests of the connection with these numbers."""
    sign = Signing(user, "secret", now_ms=clock)({CHALLENGE: numbers.challenge.decode()})
    return [signed_content(sign(CODE, {"a": "g", "b": "T"}, b""), 479) for _ in range(count)]


def refusal(
    freshness: Freshness, numbers: Numbers, content: bytes, *, code: int = CODE, user: str = "u"
) -> str:
    try:
        freshness.check(numbers, user, code, content)
    except NotFresh as why:
        return str(why)
    return ""


# --- numbers ----------------------------------------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(0, 40),
            st.integers(BEHIND_MAX - 3, BEHIND_MAX + 40),
            st.integers(2 * BEHIND_MAX - 3, 2 * BEHIND_MAX + 40),
            st.integers(0, 10**15),
        ),
        max_size=60,
    )
)
def test_each_number_is_taken_once_and_none_that_is_far_behind(come: list[int]) -> None:
    numbers, taken, highest = Numbers("0" * 16), set[int](), 0
    for number in come:
        expected = number > 0 and number not in taken and number >= highest - BEHIND_MAX
        assert numbers.take(number) is expected, (number, highest)
        if expected:
            taken.add(number)
            highest = max(highest, number)
    assert numbers.highest == highest


@settings(max_examples=50, deadline=None)
@given(st.permutations(range(1, 120)))
def test_numbers_may_overtake_each_other(order: list[int]) -> None:
    numbers = Numbers("0" * 16)
    assert all(numbers.take(number) for number in order)
    assert not any(numbers.take(number) for number in order)


def test_what_a_server_holds_back_of_a_connection_is_not_too_far_behind(clock: Clock) -> None:
    """Small control requests overtake what is held back: READ_AHEAD bytes, and one read of as many."""
    fields = Signing("u", "secret", now_ms=clock)({})(CODE, None, b"")
    smallest = sum(len(name) + len(value) for name, value in fields.items())
    assert 2 * READ_AHEAD / smallest < BEHIND_MAX


# --- what is let in ---------------------------------------------------------------------------------------------------


def test_a_request_counts_once(freshness: Freshness, clock: Clock) -> None:
    numbers = freshness.of(Caller())
    first, second = contents(numbers, clock, 2)
    assert refusal(freshness, numbers, second) == ""
    assert refusal(freshness, numbers, first) == ""
    assert refusal(freshness, numbers, first) == "request 1 of this connection was seen before."
    assert refusal(freshness, numbers, second) == "request 2 of this connection was seen before."


def test_a_request_counts_on_its_connection_alone(freshness: Freshness, clock: Clock) -> None:
    caller, other = Caller(), Caller()
    (content,) = contents(freshness.of(caller), clock)
    assert freshness.of(caller) is freshness.of(caller)
    assert refusal(freshness, freshness.of(other), content).startswith("signed for another connection")
    again = Freshness(clock, window_ms=WINDOW_MS)  # the server has started anew
    assert refusal(again, again.of(caller), content).startswith("signed for another connection")
    assert refusal(freshness, freshness.of(caller), content) == ""


@pytest.mark.parametrize("late_ms", [WINDOW_MS, -WINDOW_MS, WINDOW_MS + 1, -WINDOW_MS - 1])
def test_clocks_may_be_apart_so_far_and_the_refusal_says_how_far_they_are(
    freshness: Freshness, clock: Clock, late_ms: int
) -> None:
    numbers = freshness.of(Caller())
    (content,) = contents(numbers, clock)
    clock.now_ms += late_ms
    told = refusal(freshness, numbers, content)
    if abs(late_ms) <= WINDOW_MS:
        assert told == ""
        return
    assert told == (
        f"signed at 2023-11-14T22:13:20.000+00:00 ({NOW_MS}), and here it is "
        f"2023-11-14T22:1{4 if late_ms > 0 else 2}:{20 if late_ms > 0 else 19}.{'001' if late_ms > 0 else '999'}+00:00 "
        f"({NOW_MS + late_ms}): 60001 ms apart, at most 60000 are allowed (authReplayWindowMillis). "
        "Are both clocks right?"
    )
    clock.now_ms = NOW_MS
    assert (
        refusal(freshness, numbers, content) == ""
    )  # who was refused for the time has not used the number up


def test_the_request_code_is_signed(freshness: Freshness, clock: Clock) -> None:
    numbers = freshness.of(Caller())
    (content,) = contents(numbers, clock)
    assert refusal(freshness, numbers, content, code=320) == "signed as request code 310, and sent as 320."
    assert refusal(freshness, numbers, content) == ""


def test_a_signature_without_a_time_is_enough_unless_it_is_required(
    freshness: Freshness, clock: Clock
) -> None:
    numbers = freshness.of(Caller())
    assert refusal(freshness, numbers, b"uTopic") == ""
    assert "User:strict has to sign the time" in refusal(freshness, numbers, b"strictTopic", user="strict")
    (content,) = contents(numbers, clock, user="strict")
    assert refusal(freshness, numbers, content, user="strict") == ""


@pytest.mark.parametrize(
    "content",
    [
        b"aerobee1:",
        b"aerobee1:1:2:3:4",
        b"aerobee1:-1:0123456789abcdef:1:310;",
        b"aerobee1:1700000000000:0123456789abcdef:1:310u",
        b"aerobee1:1700000000000:0123456789ABCDEF:1:310;u",
        b"aerobee1:1700000000000:0123456789abcdef:" + b"9" * 5000 + b":310;",
    ],
)
def test_what_cannot_be_read_is_refused(freshness: Freshness, content: bytes) -> None:
    assert refusal(freshness, freshness.of(Caller()), content) == f"{FRESHNESS} cannot be read."


def test_who_was_given_no_challenge_is_refused_where_there_are_challenges(
    freshness: Freshness, clock: Clock
) -> None:
    """Somebody on the way may have taken it out of the answer."""
    for challenge in ("", "0123456789abcde", "0123456789ABCDEF", "0123456789abcdef;x", "x" * 10_000):
        fields = Signing("u", "secret", now_ms=clock)({CHALLENGE: challenge})(CODE, None, b"")
        assert fields[FRESHNESS] == f"aerobee1:{NOW_MS}:-:1:310;"
        told = refusal(freshness, freshness.of(Caller()), signed_content(fields, 479))
        assert told.startswith("signed for another connection")


# --- what is signed ---------------------------------------------------------------------------------------------------


def test_whoever_renames_the_field_has_not_got_rid_of_it(freshness: Freshness, clock: Clock) -> None:
    """Names are not signed, so a thief may choose others that sort as those did, and move bytes between them."""
    numbers = freshness.of(Caller())
    sign = Signing("u", "secret", now_ms=clock)({CHALLENGE: numbers.challenge.decode()})
    fields = sign(CODE, {"a": "g", "b": "T"}, b"body")
    value = fields.pop(FRESHNESS)
    for changed in (
        {**fields, "AAA": value},
        {**fields, "AAA": value[:9], "AAB": value[9:], "": ""},
        {**fields, "AAA": "", FRESHNESS: value},
        {**fields, ACCESS_KEY: value + "u"},
    ):
        content = signed_with(b"secret", changed, 479, b"body")
        assert content is not None  # the signature does not notice
        assert refusal(freshness, Numbers("f" * 16), content).startswith("signed for another connection")


def test_the_field_comes_before_all_others_of_every_request(served: dict[int, Row]) -> None:
    names = {name for row in served.values() for name in ordinary_fields(row)}
    assert len(names) > 100
    assert min(names | {ACCESS_KEY, "SecurityToken", "_UNIQUE_KEY_QUERY"}) > FRESHNESS


def test_requests_of_a_connection_are_numbered_and_others_begin_again(clock: Clock) -> None:
    signing = Signing("u", "secret", "token", now_ms=clock)
    one, other = signing({CHALLENGE: "0" * 16}), signing({CHALLENGE: "1" * 16})
    found = [sign(34, header, b"") for sign in (one, one, other) for header in (TopicHeader(topic="T"),)]
    assert [fields[FRESHNESS].split(":")[2:] for fields in found] == [
        ["0" * 16, "1", "34;"],
        ["0" * 16, "2", "34;"],
        ["1" * 16, "1", "34;"],
    ]
    assert all(re.fullmatch(r"[\w+/]+=", fields[SIGNATURE]) and fields["topic"] == "T" for fields in found)
