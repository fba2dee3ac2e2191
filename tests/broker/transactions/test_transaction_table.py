"""The table of open transactions, compared with a plain model; and what it learns from the queues after a crash."""

import time
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.transactions.transaction_table import TransactionTable
from turns import TURN_MAX, turn_of


def test_progress_moves_over_what_is_over_and_stops_at_the_first_open_one() -> None:
    table = TransactionTable()
    for offset in (0, 1, 3):
        assert table.end(offset, offset) == [offset]
    table.settle()
    assert (table.progress, table.held_back_count) == (2, 1)
    assert [table.is_open(offset, offset) for offset in range(5)] == [False, False, True, False, True]
    assert table.open_count(5) == 2


def test_op_progress_waits_for_all_that_a_record_names() -> None:
    table = TransactionTable()
    for offset in (0, 1, 3):
        table.end(offset, offset)
    table.marks_written(0, [0, 3])
    table.marks_written(1, [1])
    table.settle()
    assert (table.progress, table.op_progress) == (2, 0)
    table.end(2, 2)
    table.settle()
    assert (table.progress, table.op_progress) == (4, 2)


def test_an_end_by_any_copy_ends_the_newest() -> None:
    table = TransactionTable()
    table.copied(0, 0, 1)
    table.copied(1, 0, 2)
    assert not table.is_over(2)
    assert table.is_open(0, 0)
    assert table.is_open(1, 0)
    assert table.end(1, 0) == [1, 2]
    assert not any(table.is_open(offset, 0) for offset in range(3))
    assert table.open_count(3) == 0


def test_a_copy_that_cannot_be_read_any_more_is_over() -> None:
    table = TransactionTable()
    table.copied(0, 0, 1)
    table.gone(1)
    table.check()
    assert not table.is_open(0, 0)


def test_what_was_deleted_with_its_files_is_over() -> None:
    table = TransactionTable()
    table.copied(0, 0, 1)
    table.end(4, 4)
    table.skip_to(3)
    table.check()
    assert (table.progress, table.is_open(0, 0), table.is_open(3, 3)) == (3, False, True)
    table.skip_to(1)
    assert table.progress == 3


@pytest.mark.alone
def test_no_step_over_a_large_table_takes_long() -> None:
    """Each message that could not be read, and files that were deleted, cost a walk over all of the table."""
    count = 200_000
    table = TransactionTable()
    for offset in range(count):
        table.copied(2 * offset, 2 * offset, 2 * (count + offset))

    def a_thousand_are_gone() -> None:
        for offset in range(1000):
            table.gone(2 * (count + offset))

    assert turn_of(a_thousand_are_gone, tries=3) < TURN_MAX
    steps = table.skipping_to(3 * count)
    took: list[float] = []
    while True:
        began = time.thread_time()
        is_over = next(steps, True) is not None
        took.append(time.thread_time() - began)
        if is_over:
            break
    table.check()
    assert table.progress == 3 * count
    assert max(took) < 0.5 * sum(took)
    assert len(took) > 50


def test_the_offsets_move_over_so_many_in_one_turn_and_over_the_rest_later() -> None:
    table = TransactionTable()
    for offset in range(10):
        table.end(offset, offset)
        table.marks_written(offset, [offset])
    for settled in (4, 8, 10, 10):
        table.settle(4)
        assert (table.progress, table.op_progress, table.held_back_count) == (settled, settled, 10 - settled)


def test_a_mark_for_the_first_or_any_copy_ends_all_of_them() -> None:
    """The official broker marks what it was told, and knows by TRAN_PREPARED_QUEUE_OFFSET what that was copied to."""
    for marked in (0, 1, 2):
        table = TransactionTable()
        table.marks_read(0, [marked], 3)
        table.copy_read(0, 1)
        table.copy_read(0, 2)
        table.loaded()
        table.check()
        assert (table.progress, table.op_progress, table.open_count(3)) == (3, 1, 0)


def test_a_mark_for_a_message_that_is_not_there_holds_nothing_back() -> None:
    table = TransactionTable()
    table.marks_read(0, [0, 999], 1)
    table.loaded()
    assert (table.progress, table.op_progress) == (1, 1)


@dataclass
class Store:
    """The two queues as they lie on disk, and what is true of the transactions."""

    first_of: list[int] = field(default_factory=list)  # by half offset
    marks: list[list[int]] = field(default_factory=list)
    unwritten: list[list[int]] = field(default_factory=list)
    open_ones: set[int] = field(default_factory=set)  # by first offset
    saved: tuple[int, int] = (0, 0)


def step(rng: Random, store: Store, table: TransactionTable) -> None:
    """One thing that a broker does with its table."""
    what = rng.choice(["begin", "begin", "end", "end", "copy", "write", "save"])
    if what == "begin":
        store.open_ones.add(len(store.first_of))
        store.first_of.append(len(store.first_of))
    elif what == "end" and store.open_ones:
        first = rng.choice(sorted(store.open_ones))
        offset = rng.choice([at for at, one in enumerate(store.first_of) if one == first])
        store.unwritten.append(table.end(offset, first))
        store.open_ones.discard(first)
    elif what == "copy" and store.open_ones:
        first = rng.choice(sorted(store.open_ones))
        newest = max(at for at, one in enumerate(store.first_of) if one == first)
        table.copied(newest, first, len(store.first_of))
        store.first_of.append(first)
    elif what == "write" and store.unwritten:
        body = [offset for group in store.unwritten for offset in group]
        table.marks_written(len(store.marks), body)
        store.marks.append(body)
        store.unwritten.clear()
    elif what == "save":
        table.settle()
        store.saved = (table.progress, table.op_progress)


def load(store: Store) -> TransactionTable:
    table = TransactionTable(*store.saved)
    for at in range(store.saved[1], len(store.marks)):
        table.marks_read(at, store.marks[at], len(store.first_of))
    for offset in range(store.saved[0], len(store.first_of)):
        if store.first_of[offset] != offset:
            table.copy_read(store.first_of[offset], offset)
    table.loaded()
    return table


def agree(store: Store, table: TransactionTable, unsure: set[int]) -> None:
    """What the table calls open is open, but for those whose mark was not written when the broker was killed."""
    table.check()
    for offset, first in enumerate(store.first_of):
        if first not in unsure:
            assert table.is_open(offset, first) is (first in store.open_ones)
    if not unsure:
        assert table.open_count(len(store.first_of)) == len(store.open_ones)
    else:
        assert table.open_count(len(store.first_of)) >= len(store.open_ones)


@given(seed=st.integers(0, 2**32), steps=st.integers(1, 60))
def test_random_lives_and_crashes(seed: int, steps: int) -> None:
    rng, store = Random(seed), Store()
    table = TransactionTable()
    for _ in range(steps):
        step(rng, store, table)
        agree(store, table, set())
    unsure = {store.first_of[offset] for group in store.unwritten for offset in group}
    agree(store, load(store), unsure)
    if store.unwritten:  # an orderly stop instead
        store.marks.append([offset for group in store.unwritten for offset in group])
    agree(store, load(store), set())


@pytest.mark.parametrize("count", [0, 1, 1000])
def test_an_empty_table_has_everything_open(count: int) -> None:
    table = TransactionTable()
    table.settle()
    assert (table.open_count(count), table.progress) == (count, 0)
