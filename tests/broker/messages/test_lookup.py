"""Look-ups as a use case: over a store in memory, with nobody connected."""

import asyncio
from typing import Any

import pytest

from aerobee_broker.messages.lookup import KEY_SIZE_MAX, Lookup
from aerobee_broker.reading.cold_reads import ColdReads
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.records import decode_record, decode_records
from aerobee_store.disk.page_cache import NotInMemory
from aerobee_store.reading.key_lookup import KeyLookup
from aerobee_store.reading.query import QueryResult
from aerobee_store.store import MessageStore
from broker.messages.ground import Ground, T
from broker.support import Clock

FOREVER_MS = 2**62


@pytest.fixture
async def lookup(store: MessageStore, clock: Clock) -> Lookup:
    ground = Ground(store, clock)
    ground.store_all(b"1", b"2", keys="k")
    ground.store_all(b"3", unique_key="u")
    while store.keys.backlog:
        store.keys.build(100)
    return Lookup(
        live=ground.live, store=store, topics=ground.topics, messages=store.reading, cold=ground.cold
    )


async def by_key(lookup: Lookup, key: str, *, count: int = 9, is_unique: bool = False) -> QueryResult:
    found = lookup.by_key(T, key, count=count, begin_ms=0, end_ms=FOREVER_MS, is_unique=is_unique)
    return found if isinstance(found, QueryResult) else await found()


def bodies_of(found: QueryResult) -> set[bytes]:
    return {one.body for one in decode_records(b"".join(found.body))}


async def test_messages_are_found_by_their_keys(lookup: Lookup) -> None:
    assert bodies_of(await by_key(lookup, "k")) == {b"1", b"2"}
    assert bodies_of(await by_key(lookup, "u", count=0, is_unique=True)) == {b"3"}
    assert bodies_of(await by_key(lookup, "x")) == set()


async def test_those_who_look_at_the_same_time_all_find(lookup: Lookup) -> None:
    found = await asyncio.gather(*[by_key(lookup, "k") for _ in range(5)])
    assert [bodies_of(one) for one in found] == [{b"1", b"2"}] * 5


async def test_one_that_waits_for_the_disk_lets_others_be_answered_at_once(
    lookup: Lookup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the others had a task of its own, as long as one page of one query was not in memory."""
    came = asyncio.Event()
    real = KeyLookup.query_steps

    async def brought(*_: object) -> None:
        await came.wait()

    def steps(self: KeyLookup, topic: str, key: str, count: int, begin: int, end: int) -> Any:
        if key == "u":
            yield NotInMemory([])
        return (yield from real(self, topic, key, count, begin, end))

    monkeypatch.setattr(ColdReads, "brought", brought)
    monkeypatch.setattr(KeyLookup, "query_steps", steps)
    waiting = asyncio.create_task(by_key(lookup, "u"))
    await asyncio.sleep(0)
    found = lookup.by_key(T, "k", count=9, begin_ms=0, end_ms=FOREVER_MS, is_unique=False)
    assert isinstance(found, QueryResult)
    assert not waiting.done()
    came.set()
    assert bodies_of(await waiting) == {b"3"}


@pytest.mark.parametrize(("key", "count"), [("k" * (KEY_SIZE_MAX + 1), 1), ("k", 0)])
async def test_what_makes_no_sense_is_refused(lookup: Lookup, key: str, count: int) -> None:
    with pytest.raises(RequestError) as refused:
        await by_key(lookup, key, count=count)
    assert refused.value.code == ResponseCode.INVALID_PARAMETER


async def test_a_record_is_found_where_it_begins(lookup: Lookup) -> None:
    assert decode_record(lookup.at(0)).body == b"1"
    with pytest.raises(RequestError) as refused:
        lookup.at(1)
    assert refused.value.code == ResponseCode.SYSTEM_ERROR


async def test_a_queue_that_is_not_there_begins_at_0_at_any_time(lookup: Lookup) -> None:
    assert lookup.by_time(T, 0, FOREVER_MS, upper=False) == 3
    assert lookup.by_time(T, 99, FOREVER_MS, upper=False) == lookup.by_time("No", 0, 0, upper=True) == 0
