"""Looking up queue offsets by store time: the official answers, and a plain search as the model."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_store.queues.consume_queue import ConsumeQueueEntry
from aerobee_store.queues.offset_by_time import offset_by_time
from store.golden_cases import GoldenLog, expectation, open_queues, unpack

CASES = (
    "clean",
    "features",
    "kill9",
    "kill9-busy",
    "propcrc",
    "propcrc-features",
    "cq-first-file-missing-normal",
    "cq-last-file-missing-normal",
    "commitlog-last-missing",
    "expire",
    "broker-traffic-json",
)


@pytest.mark.parametrize("case", CASES)
def test_answers_are_the_official_ones(case: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    root = unpack(case, tmp_path_factory.mktemp("store"))
    log = GoldenLog.read(root)
    table = open_queues(case, root)
    for queue in table:
        queue.recover()
        queue.correct_min_offset(log.begin)
    seen = 0
    for expected in expectation(case)["timeLookups"]:
        queue_found = table.get(expected["topic"], expected["queueId"])
        assert queue_found is not None
        for timestamp, lower, upper in expected["lookups"]:
            got = [
                offset_by_time(queue_found, timestamp, side, log.store_time, log_min=log.begin)
                for side in (False, True)
            ]
            assert got == [lower, upper], (expected["topic"], expected["queueId"], timestamp)
            seen += 1
    assert seen > 20
    table.close()


@pytest.mark.parametrize("case", ["commitlog-oldest-deleted", "commitlog-only-last-kept"])
def test_answers_are_the_official_ones_while_the_minimum_lags_behind_the_log(
    case: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The first records are gone and the queue does not know yet: their entries are stepped over."""
    root = unpack(case, tmp_path_factory.mktemp("store"))
    log = GoldenLog.read(root)
    table = open_queues(case, root)
    for expected in expectation(case)["consumeQueues"]:
        if queue := table.get(expected["topic"], expected["queueId"]):
            queue.recover()
            queue.min_offset = expected["minOffset"]
            assert queue.max_offset == expected["maxOffset"]
    for expected in expectation(case)["timeLookups"]:
        found = table.get(expected["topic"], expected["queueId"])
        assert found is not None
        for timestamp, *official in expected["lookups"]:
            got = [
                offset_by_time(found, timestamp, side, log.store_time, log_min=log.begin)
                for side in (False, True)
            ]
            assert got == official, (expected["topic"], expected["queueId"], timestamp)
    table.close()


@dataclass
class ListQueue:
    """A queue whose record n lies at physical offset n; `cuts` are the first offsets of its files."""

    times: list[int]
    cuts: list[int]
    min_offset: int = 0
    max_offset: int = field(init=False)

    def __post_init__(self) -> None:
        self.max_offset = len(self.times)

    @property
    def file_spans(self) -> list[range]:
        borders = sorted({0, *self.cuts, len(self.times)})
        return [range(a, b) for a, b in pairwise(borders)]

    def entry(self, offset: int, /) -> ConsumeQueueEntry | None:
        return ConsumeQueueEntry(offset, 1, 0) if 0 <= offset < len(self.times) else None

    def store_time(self, physical_offset: int, size: int) -> int:
        assert size == 1
        return self.times[physical_offset] if physical_offset >= self.min_offset else -1


@given(
    times=st.lists(st.integers(1, 30), max_size=40).map(sorted),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    min_offset=st.integers(0, 40),
    timestamp=st.integers(0, 32),
)
def test_growing_times_give_what_a_plain_search_gives(
    times: list[int], cuts: list[int], min_offset: int, timestamp: int
) -> None:
    queue = ListQueue(times, [cut for cut in cuts if cut < len(times)], min(min_offset, len(times)))
    living = range(queue.min_offset, len(times))
    at_or_after = [n for n in living if times[n] >= timestamp]
    at_or_before = [n for n in living if times[n] <= timestamp]

    def ask(upper: bool) -> int:
        return offset_by_time(queue, timestamp, upper, queue.store_time, log_min=queue.min_offset)

    assert ask(False) == min(at_or_after, default=queue.max_offset)
    if living:
        assert ask(True) == max(at_or_before, default=queue.min_offset)


@given(
    times=st.lists(st.integers(-1, 30), max_size=40),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    timestamp=st.integers(0, 32),
    upper=st.booleans(),
)
def test_times_that_jump_about_still_give_an_offset_of_the_queue(
    times: list[int], cuts: list[int], timestamp: int, upper: bool
) -> None:
    queue = ListQueue(times, [cut for cut in cuts if cut < len(times)])
    got = offset_by_time(queue, timestamp, upper, queue.store_time)
    assert queue.min_offset <= got <= queue.max_offset
