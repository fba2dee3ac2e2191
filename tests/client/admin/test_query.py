import pytest

from aerobee import BrokerRefused, Client, InvalidMessage, NoRoute
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.fakes import STORE_TIME_MS, fake_cluster

QUERY, VIEW = RequestCode.QUERY_MESSAGE, RequestCode.VIEW_MESSAGE_BY_ID


async def test_a_key_finds_exactly_its_messages_on_every_broker_oldest_first() -> None:
    async with fake_cluster(2) as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        for number, keys in enumerate(["o-1", ["o-1", "o-2"], "o-12", ["x", "o-1"]]):
            await producer.send("T", b"%d" % number, keys=keys)
        found = await mq.query("T", key="o-1")
        assert sorted(message.body for message in found) == [b"0", b"1", b"3"]
        times = [message.store_timestamp_ms for message in found]
        assert times == sorted(times)
        assert {message.broker_name for message in found} == {"b-a", "b-b"}
        assert await mq.query("T", key="nothing") == []
        assert len(await mq.query("T", key="o-1", max_messages=1)) == 1


async def test_the_time_bounds_and_the_limit_go_to_the_broker() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        await mq.query("T", key="k")
        await mq.query("T", key="k", begin="2023-11-14T22:13:20+00:00", end="earliest", max_messages=5)
        first, second = cluster.broker.asked(QUERY)
        assert (first["beginTimestamp"], first["endTimestamp"]) == ("0", str(2**63 - 1))
        assert (second["beginTimestamp"], second["endTimestamp"]) == (str(STORE_TIME_MS), "0")
        assert (second["maxNum"], second["_UNIQUE_KEY_QUERY"]) == ("5", "false")
        with pytest.raises(InvalidMessage, match="a query takes times"):
            await mq.query("T", key="k", begin=5)


async def test_a_refused_query_is_raised() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        cluster.broker.script(QUERY, Response(ResponseCode.SYSTEM_BUSY, "busy"))
        with pytest.raises(BrokerRefused, match=r"query key 'k' of topic 'T'.*busy"):
            await mq.query("T", key="k")
        with pytest.raises(NoRoute):
            await mq.query("U", key="k")


async def test_both_ids_of_a_result_find_the_message() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        await producer.send("T", b"other")
        result = await producer.send("T", b"mine")
        by_place = await mq.query_by_id(result.offset_message_id)
        by_name = await mq.query_by_id(result.message_id, "T")
        assert by_place is not None
        assert by_name is not None
        assert by_place.body == by_name.body == b"mine"
        assert by_place.queue == result.queue
        assert cluster.broker.asked(QUERY)[-1]["_UNIQUE_KEY_QUERY"] == "true"


async def test_unknown_ids_find_nothing() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        result = await producer.send("T", b"mine")
        beyond = f"{int(result.offset_message_id, 16) + 7:032X}"
        assert await mq.query_by_id(beyond) is None
        assert await mq.query_by_id("0" * 31 + "F", "T") is None
        assert await mq.query_by_id("my-own-id", "T") is None


async def test_an_id_without_a_place_needs_a_topic() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        with pytest.raises(InvalidMessage, match="give the topic"):
            await mq.query_by_id("my-own-id")


async def test_a_unique_id_that_looks_like_a_place_is_still_found_in_the_index() -> None:
    """A pid whose low bits are 0 makes a unique id look like the address of a broker that is not there."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        looks_like_a_place = "7F000001" + "00000001" + "0000000000000001"
        cluster.broker.append("T", 0, b"x", f"UNIQ_KEY\x01{looks_like_a_place}\x02")
        found = await mq.query_by_id(looks_like_a_place, "T")
        assert found is not None
        assert found.body == b"x"
