"""No request and no round keeps the event loop longer than a turn may take, however much the broker holds."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from aerobee_broker.broker import Broker
from aerobee_broker.metrics.metrics import MetricsServer
from aerobee_broker.settings.config_files import AnyTable
from aerobee_proto.codes import RequestCode
from aerobee_remoting.exchange.handlers import Entry
from aerobee_service.turns.slices import in_slices
from system.full_broker import Crowd, fill, largest_of
from system.running import running_broker
from system.walking import Calm, Walk, longest_turn
from turns import TURN_MAX

LARGE = (21, 43, 61, 201, 202, 203, 204, 208, 215, 222, 300, 303, 305, 308, 328, 343, 400, 402)
LAST = (
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.DELETE_TOPIC_IN_BROKER,
)


@asynccontextmanager
async def full_broker(root: Path) -> AsyncIterator[Broker]:
    # At its end the whole crowd leaves at once: 180,000 lines of level debug, which a broker writes only when asked to.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    async with running_broker(root, enable_property_filter=True) as broker:
        fill(broker)
        crowd = await asyncio.to_thread(Crowd, broker.port)
        try:
            with Calm():
                yield broker
        finally:
            crowd.close()


def _order(entry: Entry) -> tuple[int, int]:
    """Those last that take away what others ask for."""
    return LAST.index(RequestCode(entry.code)) if entry.code in LAST else -1, entry.code


def _rounds(broker: Broker) -> dict[str, Callable[[], Awaitable[object]]]:
    """What comes by time, or from whoever looks in."""
    parts = broker.parts
    metrics = MetricsServer(parts.observed)

    def saved(table: AnyTable) -> Awaitable[None]:
        table.revision += 1
        return parts.files.save(table)

    async def scanned() -> None:
        parts.clients.scan()

    return {
        "topics are written": lambda: saved(parts.topics),
        "groups are written": lambda: saved(parts.groups),
        "offsets are written": lambda: saved(parts.offsets),
        "request modes are written": lambda: saved(parts.request_modes),
        "counters are sampled": lambda: in_slices(parts.stats.sample_steps(parts.clock())),
        "clients are looked at": scanned,
        "metrics are read": metrics.metrics_page,
        "health is looked at": metrics.ready_page,
    }


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_no_request_and_no_round_takes_longer_than_a_turn_may_however_much_there_is(
    tmp_path: Path,
) -> None:
    """How far one group is took 0.5 s in one turn, all offsets 0.2 s, a reset of 16,384 queues 0.1 s, and how far all
    groups are took minutes: each group walked the offsets of all.
    """
    async with full_broker(tmp_path) as broker:
        took = {name: await longest_turn(work) for name, work in _rounds(broker).items()}
        walk = Walk(broker.port, largest_of)
        await walk.over(sorted(broker.handlers.by_code.values(), key=_order))
    assert walk.too_long == {}
    assert {name: round(turn, 1) for name, turn in took.items() if turn > TURN_MAX} == {}
    answered = {code for (code, _), answer in walk.answered.items() if answer == 0}
    assert answered >= set(LARGE), "the others are refused"
