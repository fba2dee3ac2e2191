from hypothesis import given
from hypothesis import strategies as st

from aerobee.consuming.rebalance import sort_members, take_share
from aerobee.terms.routes import MessageQueue

QUEUES = st.integers(0, 60)
MEMBERS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=20, unique=True)


def queues_of(count: int) -> list[MessageQueue]:
    return [MessageQueue("T", f"b-{number % 3}", number // 3) for number in range(count)]


def by_the_book(count: int, members: int, index: int) -> range:
    """The official rule as its description puts it."""
    left_over = count % members
    if count <= members:
        size = 1
    else:
        size = count // members + (1 if left_over > 0 and index < left_over else 0)
    start = index * size if left_over > 0 and index < left_over else index * size + left_over
    return range(min(start, count), min(start + size, count))


@given(QUEUES, MEMBERS)
def test_every_queue_has_one_owner_and_shares_are_even(count: int, members: list[str]) -> None:
    queues = queues_of(count)
    shares = [take_share(reversed(queues), members, member) for member in members]
    assert sorted(queue for share in shares for queue in share) == sorted(queues)
    sizes = {len(share) for share in shares}
    assert max(sizes) - min(sizes) <= 1


@given(QUEUES, MEMBERS)
def test_shares_are_those_of_the_official_rule(count: int, members: list[str]) -> None:
    ordered, queues = sort_members(members), sorted(queues_of(count))
    for index, member in enumerate(ordered):
        expected = [queues[at] for at in by_the_book(count, len(members), index)]
        assert take_share(queues, members, member) == expected


def test_who_is_not_a_member_gets_nothing() -> None:
    assert take_share(queues_of(4), ["a", "b"], "c") == []


def test_members_are_sorted_as_java_sorts_text() -> None:
    """By UTF-16 units a character beyond the first plane comes before U+FFFD; by code points it comes after."""
    assert sort_members(["\ufffd", "\U0001f600", "b", "a", "b"]) == ["a", "b", "\U0001f600", "\ufffd"]
