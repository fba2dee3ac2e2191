"""Every request, round and lost connection of a broker whose tables are large: none holds its event loop for long.

All codes that a broker serves are asked, so a new one is asked, too: with what `full_broker` knows as its largest
request, or else an ordinary one. Who is connected is made up; only the requests come over a socket.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from aerobee_access.file import AccessFile
from aerobee_broker.broker import Broker
from aerobee_broker.messages.values import Query
from aerobee_broker.metrics.metrics import MetricsServer
from aerobee_broker.pop.popping import SERVED_MAX
from aerobee_broker.pop.values import NoticeQuery
from aerobee_broker.settings.config_files import AnyTable
from aerobee_proto.codes import RequestCode
from aerobee_proto.names import GroupQueue
from aerobee_service.turns.slices import in_slices
from system.full_broker import POPULAR, Silent, fill, fill_access, largest_of, throng
from system.running import running_broker
from system.walking import Calm, Walk, longest_turn
from turns import TURN_MAX

ENTRIES = 20_000  # topics, groups, offsets, statistics, members, policies, held pulls of one connection
USERS = 10_000
CONNECTIONS = 2_000
# About all of them. If one of these is refused, nothing is shown.
LARGE = {21, 38, 43, 61, 201, 203, 204, 300, 308, 314, 328, 343, 400, 402, 3005, 3010}
# About queues on the disk, or larger than an answer may be: in test_full_broker.
ELSEWHERE = {
    RequestCode.DELETE_TOPIC_IN_BROKER,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.GET_BROKER_CONSUME_STATS,
    RequestCode.GET_CONSUME_STATS,
}
LAST = (RequestCode.CLONE_GROUP_OFFSET, RequestCode.DELETE_SUBSCRIPTIONGROUP)


@asynccontextmanager
async def large_broker(root: Path) -> AsyncIterator[Broker]:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    async with running_broker(root, enable_property_filter=True, pop_polling_size=ENTRIES) as broker:
        fill(broker, ENTRIES)
        fill_access(broker, USERS, 2 * USERS)
        throng(broker, ENTRIES, CONNECTIONS)
        with Calm():
            yield broker


def hold_pulls(broker: Broker) -> Silent:
    """As many pulls as one connection may hold, in one queue."""
    peer, pulls = Silent(1), broker.parts.pulls
    for _ in range(ENTRIES):
        query = Query(group="group-1", topic=POPULAR, queue_id=0, offset=0, count=32, wait_ms=100_000)
        query.has_filter, query.expression = True, "*"
        assert pulls.read(query, peer, lambda _, __: None, None) is None
    return peer


def hold_notices(broker: Broker) -> Silent:
    """The same of pops."""
    peer, pops = Silent(2), broker.parts.pop.pops
    for _ in range(ENTRIES):
        query = NoticeQuery(place=GroupQueue("group-1", POPULAR, -1), wait_ms=100_000)
        assert pops.notice(query, peer, lambda _: None) is None
    return peer


def rounds(broker: Broker, root: Path) -> dict[str, Callable[[], Awaitable[object]]]:
    """What comes by time, by a message, or with the end of a connection. Each call makes what it is about anew."""
    parts, page = broker.parts, MetricsServer(broker.parts.observed)

    def saved(table: AnyTable) -> Awaitable[None]:
        table.revision += 1
        return parts.files.save(table)

    def all_are_silent() -> Awaitable[int]:
        throng(broker, ENTRIES, CONNECTIONS)
        parts.live.value = parts.live.value.model_copy(update={"channel_expired_timeout": -1})
        return in_slices(parts.clients.scan_steps())

    def lost_with_pulls() -> Awaitable[None]:
        peer = hold_pulls(broker)
        peer.close()
        return after(lambda: parts.pulls.drop_owner(peer))

    def lost_with_pops() -> Awaitable[None]:
        peer = hold_notices(broker)
        peer.close()
        return after(lambda: parts.pop.pops.drop_owner(peer))

    def woken() -> Awaitable[None]:
        hold_pulls(broker)
        return after(lambda: parts.pulls.wake(POPULAR, 0, 1, bytes(20)))

    def reset() -> Awaitable[None]:
        hold_pulls(broker)
        return after(lambda: parts.pulls.group_reset("group-1", POPULAR, 0))

    def concerns_many_groups() -> Awaitable[None]:
        peer, pops = Silent(3), parts.pop.pops
        for number in range(ENTRIES):
            query = NoticeQuery(place=GroupQueue(f"group-{number}", POPULAR, -1), wait_ms=100_000)
            assert pops.notice(query, peer, lambda _: None) is None

        async def comes() -> None:
            for _ in range(3):
                pops.wake(POPULAR, 0, bytes(20))
            for _ in range(ENTRIES // SERVED_MAX * 2):
                await asyncio.sleep(0)
            pops.drop_owner(peer)

        return comes()

    async def after(happens: Callable[[], object]) -> None:
        happens()
        async with asyncio.timeout(60):
            while len(parts.pulls.held) or len(parts.pop.pops.held):  # noqa: ASYNC110  # in turns that are watched
                await asyncio.sleep(0)

    return {
        "modes are written": lambda: saved(parts.request_modes),
        "timer counts are written": lambda: saved(parts.timer_counts),
        "users are written": AccessFile(root / "access.json", broker.access.table).save,
        "metrics are read": page.metrics_page,
        "nobody is silent": lambda: in_slices(parts.clients.scan_steps()),
        "all are silent": all_are_silent,
        "a connection with many held pulls is lost": lost_with_pulls,
        "a connection with many held pops is lost": lost_with_pops,
        "a message comes that many pulls wait for": woken,
        "a message comes that many groups wait for": concerns_many_groups,
        "a group of which many pulls wait is sent elsewhere": reset,
    }


@pytest.mark.timeout(300)
async def test_no_request_and_no_round_over_large_tables_takes_longer_than_a_turn_may(tmp_path: Path) -> None:
    """Lists of members, users and policies were made in one turn; who deleted a group walked the counters of all; a
    connection that was lost, or a message that came, took as long as there were requests that waited."""
    async with large_broker(tmp_path) as broker:
        walk = Walk(broker.port, largest_of)
        entries = [one for one in broker.handlers.by_code.values() if one.code not in ELSEWHERE]
        await walk.over(sorted(entries, key=lambda one: (one.code in LAST, one.code)))
        took = {name: await longest_turn(work) for name, work in rounds(broker, tmp_path).items()}
    assert walk.too_long == {}
    assert {code for (code, _), answer in walk.answered.items() if answer == 0} >= LARGE, (
        "others were refused"
    )
    assert {name: round(turn, 1) for name, turn in took.items() if turn > TURN_MAX} == {}
    assert broker.parts.consumers.member_count == broker.parts.producers.member_count == 0
