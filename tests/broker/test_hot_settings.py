"""Every setting that a running broker can change is asked for by the part that uses it, after the change.

One broker, one request that changes them all, and a client that uses what they steer. The settings note which of them
are looked at: a part that keeps a copy from its start looks at none of the new ones.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from aerobee_broker.broker import Broker
from aerobee_broker.cluster import registration
from aerobee_broker.metrics import stats_line
from aerobee_broker.remoting_api.settings_handlers import SettingsHandlers
from aerobee_broker.settings.config import BrokerConfig, field_of, hot_keys
from aerobee_broker.upkeep import housekeeping, scrubbing
from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.codes import RequestCode
from aerobee_proto.ha import TRANSFER_HEAD_SIZE, encode_report
from aerobee_service.clock import epoch_ms
from plain_remoting import topic_fields
from system.popping import Popper, popping
from system.running import broker_config, text_of
from system.transacting import COMMIT, end, send_half

DAY_MS = 86_400_000

# Such that the change turns on what uses the others, and that every pause is one that only a change ends.
STARTED_WITH: dict[str, Any] = {
    "auto_create_topic_enable": False,
    "auto_create_subscription_group": False,
    "lite_pull_message_enable": False,
    "reject_transaction_message": True,
    "transaction_check_interval": DAY_MS,
    "transaction_op_batch_interval": DAY_MS,
    "flush_interval_commit_log": DAY_MS,
    "flush_interval_consume_queue": DAY_MS,
    "flush_consumer_offset_interval": DAY_MS,
    "flush_delay_offset_interval": DAY_MS,
}
# What is changed to something other than the opposite or the next number.
CHANGED_TO = {
    "brokerPermission": "7",
    "defaultMessageRequestMode": "POP",
    "deleteWhen": "05",
    "regionId": "elsewhere",
    **dict.fromkeys(
        ["transactionCheckInterval", "transactionOpBatchInterval", "registerNameServerPeriod"], "20"
    ),
    **dict.fromkeys(["flushIntervalCommitLog", "flushIntervalConsumeQueue"], "20"),
    **dict.fromkeys(["flushConsumerOffsetInterval", "flushDelayOffsetInterval", "scrubInterval"], "20"),
}


class WatchedConfig(BrokerConfig):
    """Notes every look at a value that is not the one at the start."""

    first: ClassVar[BrokerConfig | None] = None
    used: ClassVar[set[str]] = set()
    news: ClassVar[asyncio.Event]

    def __getattribute__(self, name: str) -> Any:
        if name in BrokerConfig.model_fields and WatchedConfig.first not in (None, self):
            WatchedConfig.used.add(name)
            WatchedConfig.news.set()
        return super().__getattribute__(name)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)


@pytest.fixture
def watched() -> Iterator[type[WatchedConfig]]:
    WatchedConfig.first = None
    WatchedConfig.used = set()
    WatchedConfig.news = asyncio.Event()
    yield WatchedConfig
    WatchedConfig.first = None


def new_value(config: BrokerConfig, key: str) -> str:
    if key in CHANGED_TO:
        return CHANGED_TO[key]
    value = getattr(config, field_of(key))
    if isinstance(value, bool):
        return "false" if value else "true"
    return str(value + 1)


async def be_a_slave(broker: Broker) -> None:
    """As a slave does, until the master has said something."""
    port = int(broker.parts.identity.ha_addr.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(encode_report(0))
    await reader.readexactly(TRANSFER_HEAD_SIZE)
    broker.parts.replication.status()
    writer.close()


async def use_all(client: Popper) -> None:
    """What a day brings: sends, pulls, pops, transactions, administration."""

    async def ask(code: int, body: object = None, **fields: str) -> None:
        await client.ask(code, fields, b"" if body is None else json.dumps(body).encode())

    await ask(RequestCode.UPDATE_AND_CREATE_TOPIC, **topic_fields("Made", 1))
    for topic in ("T", "Made"):
        assert (await client.put(topic, queue_id=0)).code == 0
    await end(client, await send_half(client, "T", b"half", key="K1"), COMMIT)
    await ask(RequestCode.RECALL_MESSAGE, topic="T", recallHandle="x")
    reply = {"REPLY_TO_CLIENT": "nobody"}
    fields = {**PUT, "topic": "T", "properties": text_of(reply)}
    await client.ask(RequestCode.SEND_REPLY_MESSAGE, fields, b"reply")
    group = {"groupName": "test-group", "subscriptionDataSet": [{"topic": "T", "subString": "*"}]}
    await ask(RequestCode.HEART_BEAT, {"clientID": "c", "consumerDataSet": [group], "producerDataSet": []})
    await client.pull("T", 0)
    await client.pull("T", 0, queueId=2, sysFlag=6, suspendTimeoutMillis=1)
    await client.exchange(client.pull_request("T", 0, code=RequestCode.LITE_PULL_MESSAGE))
    await client.pop("T", initMode=1)
    await client.pop("T", queueId=1, pollTime=1_000, bornTime=epoch_ms())
    query = {"consumerGroup": "test-group", "topic": "T", "clientId": "c", "messageModel": "CLUSTERING"}
    await ask(RequestCode.QUERY_ASSIGNMENT, query)
    key = {"topic": "T", "key": "K1", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    await ask(RequestCode.QUERY_MESSAGE, **key, _UNIQUE_KEY_QUERY="true")
    reset = {"topic": "T", "group": "test-group", "timestamp": "0", "isForce": "true"}
    await ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, **reset)
    await ask(RequestCode.DELETE_TOPIC_IN_BROKER, topic="Made")


PUT = {
    "producerGroup": "p",
    "defaultTopic": "TBW102",
    "defaultTopicQueueNums": "4",
    "queueId": "0",
    "sysFlag": "0",
    "bornTimestamp": "1",
    "flag": "0",
}


async def test_every_hot_key_is_followed(
    tmp_path: Path, watched: type[WatchedConfig], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`flushIntervalCommitLog` and `syncFlushTimeout` were read once, at the start: an update was answered with
    success and changed nothing. Others were looked at only when a pause of the old length was over.
    """

    def take_in(handlers: SettingsHandlers, changed: set[str]) -> None:
        watched.used.clear()  # the comparison with the old ones has looked at all of them
        follow(handlers, changed)

    follow = SettingsHandlers._apply
    monkeypatch.setattr(SettingsHandlers, "_apply", take_in)
    monkeypatch.setattr(stats_line, "SAMPLE_S", 0.02)
    monkeypatch.setattr(housekeeping, "SCAN_S", 0.02)
    monkeypatch.setattr(registration, "PERIOD_MIN_S", 0.02)
    monkeypatch.setattr(scrubbing, "LOOK_S", 0.02)
    monkeypatch.setattr(scrubbing, "FIRST_ROUND_S", 0.0)
    addresses = {"listenPort": "0", "bindAddress": "127.0.0.1"}
    nameserver = NameServer(load_config(overrides=addresses, environ={}), keep_kv=False)
    await nameserver.start()
    start = broker_config(tmp_path, clean_resource_interval=20, **STARTED_WITH)
    broker = Broker(watched(**{name: getattr(start, name) for name in start.model_fields_set}))
    try:
        await broker.start()
        watched.first = broker.parts.config
        changes = {key: new_value(watched.first, key) for key in hot_keys() - {"namesrvAddr"}}
        changes["namesrvAddr"] = f"127.0.0.1:{nameserver.port}"
        async with popping(broker) as client:
            body = "".join(f"{key}={value}\n" for key, value in changes.items())
            answer = await client.ask(RequestCode.UPDATE_BROKER_CONFIG, body=body.encode())
            assert answer.code == 0, answer.remark
            await use_all(client)
            await be_a_slave(broker)
            expected = {field_of(key) for key in hot_keys()} - {
                "ha_max_time_slave_not_catchup"
            }  # of an election
            try:
                async with asyncio.timeout(30):
                    while expected - watched.used:
                        watched.news.clear()
                        await watched.news.wait()
            except TimeoutError:
                assert sorted(expected - watched.used) == []
    finally:
        await broker.close()
        await nameserver.close()
