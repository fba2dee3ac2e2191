"""What readers, group members and ranges share: how answers are decoded, and how what failed is tried again."""

import asyncio

import pytest

from aerobee.consuming.pulls import Patience, Pulls, PullTerms, decoded
from aerobee.errors import BrokerRefused, ClientError
from aerobee.net.peers import Nameservers, Peers
from aerobee.net.route_table import RouteTable
from aerobee.terms.routes import MessageQueue
from aerobee_proto.codes import ResponseCode
from aerobee_proto.records import encode_record
from aerobee_remoting.ends.client import RemotingClient
from aerobee_service.logs.event_log import event_logger

QUEUE = MessageQueue("T", "broker-a", 3)


def record(queue_offset: int) -> bytes:
    return encode_record(
        topic="T",
        queue_id=3,
        queue_offset=queue_offset,
        physical_offset=1000 * queue_offset,
        born_timestamp=1,
        born_host=("127.0.0.1", 1),
        store_timestamp=2,
        store_host=("127.0.0.1", 2),
        body=b"hello",
    )


def damaged(queue_offset: int) -> bytes:
    """The body is another one than its checksum says; all of the head is sound."""
    return record(queue_offset).replace(b"hello", b"jello")


def pulls(*, give_up_s: float | None, passes: frozenset[int]) -> Pulls:
    peers = Peers(RemotingClient(), 1.0)
    routes = RouteTable(Nameservers(peers, ("127.0.0.1:1",), start=0))
    return Pulls(
        PullTerms(group="G", count=32, max_bytes=None, hold_s=None, timeout_s=1.0),
        Patience(retry_s=0.001, retry_max_s=0.004, give_up_s=give_up_s, passes=passes.__contains__),
        peers=peers,
        routes=routes,
        log=event_logger("aerobee.test"),
    )


def refused(code: int) -> BrokerRefused:
    return BrokerRefused("pull it", "127.0.0.1:1", code, "no")


def test_records_before_the_damage_are_handed_over_and_the_damage_has_a_place() -> None:
    records, damage = decoded(QUEUE, 7, record(7) + record(8) + damaged(9) + record(10), check_crc=True)
    assert [one.queue_offset for one in records] == [7, 8]
    assert damage is not None
    assert (damage.topic, damage.broker_name, damage.queue_id, damage.queue_offset) == ("T", "broker-a", 3, 9)


def test_damage_behind_messages_that_a_filter_kept_back_has_its_own_offset() -> None:
    """The offset that was asked for would be damaged again and again for whoever skips one message."""
    records, damage = decoded(QUEUE, 7, damaged(12) + record(13), check_crc=True)
    assert records == []
    assert damage is not None
    assert damage.queue_offset == 12


def test_damage_that_hides_its_own_offset_is_where_the_pull_began() -> None:
    _, damage = decoded(QUEUE, 7, bytes(100), check_crc=True)
    assert damage is not None
    assert damage.queue_offset == 7


async def test_what_may_pass_is_tried_again_with_pauses_that_double() -> None:
    tried: list[int] = []
    logged: list[float] = []

    async def once(attempt: int) -> str:
        tried.append(attempt)
        if attempt < 4:
            raise refused(ResponseCode.SYSTEM_BUSY)
        return "there"

    patient = pulls(give_up_s=None, passes=frozenset({ResponseCode.SYSTEM_BUSY}))
    assert await patient.patiently("T", once, lambda _, pause_s: logged.append(pause_s)) == "there"
    assert tried == [0, 1, 2, 3, 4]
    assert logged == [0.001, 0.002, 0.004, 0.004]


async def test_what_waiting_does_not_cure_is_raised_at_once() -> None:
    logged: list[ClientError] = []

    async def once(_: int) -> None:
        raise refused(ResponseCode.NO_PERMISSION)

    patient = pulls(give_up_s=None, passes=frozenset({ResponseCode.SYSTEM_BUSY}))
    with pytest.raises(BrokerRefused):
        await patient.patiently("T", once, lambda failed, _: logged.append(failed))
    assert logged == []


async def test_what_fails_for_too_long_is_raised() -> None:
    tried: list[int] = []

    async def once(attempt: int) -> None:
        tried.append(attempt)
        raise refused(ResponseCode.SYSTEM_BUSY)

    patient = pulls(give_up_s=0.01, passes=frozenset({ResponseCode.SYSTEM_BUSY}))
    async with asyncio.timeout(20):
        with pytest.raises(BrokerRefused):
            await patient.patiently("T", once, lambda *_: None)
    assert len(tried) > 1
