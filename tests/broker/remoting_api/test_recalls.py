"""Recalls of timer messages, and what brokers ask about the timer, on connections in memory."""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator

import msgspec
import pytest

from aerobee_broker.broker import Broker
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.frames import Command
from broker.in_memory import broker_in_memory, talking_in_memory
from broker.support import START_MS, Clock
from system.running import Talker, text_of

DUE_MS = START_MS + 60_000


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
async def broker(clock: Clock) -> AsyncIterator[Broker]:
    async with broker_in_memory(clock=clock, recall_message_enable=True) as broker:
        yield broker


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Talker]:
    async with talking_in_memory(broker) as client:
        yield client


async def put_timer(client: Talker, **properties: str) -> Command:
    answer = await client.put("T", properties=text_of({"UNIQ_KEY": "u1", **properties}))
    assert answer.code == 0, answer.remark
    return answer


async def recall(client: Talker, handle: str, topic: str = "T") -> Command:
    return await client.ask(RequestCode.RECALL_MESSAGE, {"topic": topic, "recallHandle": handle})


def words_of(handle: str) -> list[str]:
    return urlsafe_b64decode(handle).decode().split(" ")


def handle_of(*words: object) -> str:
    return urlsafe_b64encode(" ".join(map(str, words)).encode()).decode()


@pytest.mark.parametrize("codec", [0, 1, 2], ids=["json", "rocketmq", "msgpack"])
async def test_a_timer_message_gets_a_handle_and_others_do_not(client: Talker, codec: int) -> None:
    timed = await client.put(
        "T", properties=text_of({"TIMER_DELIVER_MS": str(DUE_MS)}), codec=codec, queue_id=2
    )
    assert words_of(timed.ext["recallHandle"])[:4] == ["v1", "T", "test-a", str(DUE_MS)]
    assert timed.ext["queueId"] == "2"
    plain = await client.put("T", codec=codec)
    assert "recallHandle" not in plain.ext
    retried = await client.put("%RETRY%g", properties=text_of({"TIMER_DELAY_SEC": "5"}), codec=codec)
    assert "recallHandle" not in retried.ext


async def test_a_recalled_message_does_not_come(broker: Broker, client: Talker, clock: Clock) -> None:
    answer = await put_timer(client, TIMER_DELAY_SEC="60")
    recalled = await recall(client, answer.ext["recallHandle"])
    assert (recalled.code, recalled.ext) == (0, {"msgId": "u1", "MSG_REGION": "DefaultRegion"})
    timers = broker.parts.timers
    assert timers is not None
    await timers.work()
    clock.now_ms = DUE_MS + 5000
    await timers.work()
    assert await client.records("T") == []
    assert timers.waiting_count == 0


@pytest.mark.parametrize(
    "handle",
    [
        "",
        "not base64!",
        handle_of("v2", "T", "test-a", DUE_MS, "u1"),
        handle_of("v1", "T", "test-a", DUE_MS),
        handle_of("v1", "Other", "test-a", DUE_MS, "u1"),
        handle_of("v1", "T", "test-b", DUE_MS, "u1"),
        handle_of("v1", "T", "test-a", START_MS, "u1"),
        handle_of("v1", "T", "test-a", START_MS + 10**10, "u1"),
        handle_of("v1", "T", "test-a", "soon", "u1"),
        handle_of("v1", "T", "test-a", DUE_MS, "u1\x02REAL_TOPIC\x01other"),
    ],
)
async def test_handles_that_mean_nothing_here_are_refused(client: Talker, handle: str) -> None:
    await put_timer(client, TIMER_DELAY_SEC="60")
    refused = await recall(client, handle)
    assert refused.code == ResponseCode.ILLEGAL_OPERATION
    assert refused.remark


async def test_recalls_are_off_unless_they_are_turned_on(clock: Clock) -> None:
    async with broker_in_memory(clock=clock) as broker, talking_in_memory(broker) as client:
        answer = await put_timer(client, TIMER_DELAY_SEC="60")
        refused = await recall(client, answer.ext["recallHandle"])
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "recallMessageEnable" in (refused.remark or "")


async def test_brokers_learn_how_far_the_timer_is(broker: Broker, client: Talker) -> None:
    await put_timer(client, TIMER_DELAY_SEC="60")
    timers = broker.parts.timers
    assert timers is not None
    await timers.work()
    checkpoint = await client.ask(RequestCode.GET_TIMER_CHECK_POINT)
    assert len(checkpoint.body) == 56
    assert int.from_bytes(checkpoint.body[16:24], "big") == 1
    metrics = msgspec.json.decode((await client.ask(RequestCode.GET_TIMER_METRICS)).body)
    assert metrics["timingCount"]["T"]["count"] == 1
    runtime = msgspec.json.decode((await client.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)["table"]
    assert (runtime["timerCongestNum"], runtime["timerOffsetBehind"], runtime["timerReadBehind"]) == (
        "1",
        "0",
        "0",
    )


async def test_without_a_timer_there_is_nothing_to_tell() -> None:
    async with broker_in_memory(timer_wheel_enable=False) as broker, talking_in_memory(broker) as client:
        refused = await client.put("T", properties=text_of({"TIMER_DELAY_SEC": "5"}))
        assert (refused.code, "timerWheelEnable" in (refused.remark or "")) == (
            ResponseCode.SYSTEM_ERROR,
            True,
        )
        assert (await client.ask(RequestCode.GET_TIMER_CHECK_POINT)).code == ResponseCode.SYSTEM_ERROR
        assert (await client.ask(RequestCode.GET_TIMER_METRICS)).code == ResponseCode.SYSTEM_ERROR


async def test_every_answer_to_a_recall_names_the_region(client: Talker) -> None:
    """Official producers trace only the recalls whose answer has it; ours had none and no recall was ever traced."""
    await client.put("T")
    for topic, handle in (("T", "x"), ("No", "x"), ("rmq_sys_wheel_timer", "x")):
        refused = await recall(client, handle, topic)
        assert refused.code != 0
        assert refused.ext == {"MSG_REGION": "DefaultRegion"}
