"""Ranges in partitions of about equal size."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee import MessageQueue, SqlFilter, TagFilter
from aerobee.consuming.ranges import QueueRange
from pyspark_aerobee.topic_plan import Narrowing, SizeProfile, TopicPartition, pack

QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]


def profile(begin: int, sizes: list[int]) -> SizeProfile:
    """Every message's own size."""
    sums = [0]
    for size in sizes:
        sums.append(sums[-1] + size)
    return SizeProfile(list(range(begin, begin + len(sizes) + 1)), sums)


def offsets(partitions: list[TopicPartition]) -> list[tuple[MessageQueue, int]]:
    return [
        (q, n) for partition in partitions for q, begin, end in partition.ranges for n in range(begin, end)
    ]


@given(
    st.lists(st.lists(st.integers(1, 5000), max_size=60), min_size=1, max_size=4),
    st.integers(1, 12),
    st.one_of(st.none(), st.integers(1, 20)),
    st.one_of(st.none(), st.integers(1, 20_000)),
)
def test_every_message_lies_in_one_partition(
    sizes: list[list[int]], min_partitions: int, max_records: int | None, max_bytes: int | None
) -> None:
    ranges = [QueueRange(q, 7, 7 + len(mine)) for q, mine in zip(QUEUES, sizes, strict=False)]
    profiles = {q: profile(7, mine) for q, mine in zip(QUEUES, sizes, strict=False)}
    found = pack(
        ranges, profiles, min_partitions=min_partitions, max_records=max_records, max_bytes=max_bytes
    )
    expected = [(q, n) for q, begin, end in ranges for n in range(begin, end)]
    assert sorted(offsets(found)) == expected
    assert len(found) >= min(min_partitions, len(expected))
    assert all(one.ranges for one in found)
    for one in found:
        counts = [end - begin for _, begin, end in one.ranges]
        assert max_records is None or sum(counts) <= max_records
        size = sum(profiles[q].size(begin, end) for q, begin, end in one.ranges)
        if max_bytes is not None and sum(counts) > 1:
            assert size <= max_bytes + 5000  # a single message may go over


def test_small_queues_are_one_partition_and_a_large_one_is_many() -> None:
    ranges = [
        QueueRange(QUEUES[0], 0, 100),
        QueueRange(QUEUES[1], 0, 50),
        QueueRange(QUEUES[2], 0, 1_000_000),
    ]
    profiles = {one.queue: SizeProfile([0, one.end], [0, one.end * 400]) for one in ranges}
    found = pack(ranges, profiles)
    assert [one.ranges[0].queue for one in found] == [QUEUES[0]] + [QUEUES[2]] * (len(found) - 1)
    assert 6 <= len(found) <= 10
    cuts = [one.ranges[-1] for one in found]
    assert all(before.end == after.begin for before, after in pairwise(cuts))
    assert len(pack(ranges[:2], profiles)) == 1


def test_large_messages_count_as_what_they_are() -> None:
    """The last tenth of the messages has most of the bytes."""
    sizes = SizeProfile([0, 9000, 10_000], [0, 9000 * 100, 9000 * 100 + 1000 * 100_000])
    found = pack([QueueRange(QUEUES[0], 0, 10_000)], {QUEUES[0]: sizes}, min_partitions=10)
    last_tenth = [one for one in found if one.ranges[0].begin >= 9000]
    assert len(last_tenth) >= 9


@pytest.mark.parametrize("begin", [0, 3, 10, 14])
def test_a_cut_has_about_the_size_that_was_asked_for(begin: int) -> None:
    sizes = profile(0, [10, 1000, 10] * 5)
    for expected in (1, 10, 500, 2000, 10_000):
        cut = sizes.cut(begin, expected)
        assert begin < cut <= 15
        assert cut == begin + 1 or sizes.size(begin, cut) <= expected
        assert cut == 15 or sizes.size(begin, cut + 1) > expected


def test_tags_of_the_query_narrow_a_filter_that_wants_everything() -> None:
    narrowing = Narrowing(tags=frozenset({"b", "a"}), queue_ids=frozenset({1}))
    assert narrowing.filter(TagFilter()) == TagFilter("a || b")
    assert narrowing.filter(TagFilter("c")) == TagFilter("c")
    assert narrowing.filter(SqlFilter("x > 3")) == SqlFilter("x > 3")
    assert [narrowing.allows(queue) for queue in QUEUES] == [False, True, False, False]


@pytest.mark.parametrize("tag", ["a||b", " a", "*", ""])
def test_a_tag_that_is_no_filter_is_left_to_spark(tag: str) -> None:
    assert Narrowing(tags=frozenset({tag, "c"})).filter(TagFilter()) == TagFilter()
