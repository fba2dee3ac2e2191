"""Our signatures, judged by the official broker with its access control on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import official
from aerobee import BrokerRefused, Client, Credentials
from aerobee_access.freshness import Signing
from aerobee_remoting.ends.client import RemotingClient, RemotingClientConfig
from client_scenarios import fresh, take
from plain_remoting import topic_fields
from system.running import send_request

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

USER, SECRET = "operator", "secret12"
AUTH = "org.apache.rocketmq.auth.authentication.provider"
SETTINGS: dict[str, object] = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps({"username": USER, "password": SECRET}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": USER, "secretKey": SECRET}),
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of a nameserver and of a broker that asks for signatures."""
    folder = tmp_path_factory.mktemp("access")
    with (
        official.start_nameserver(folder) as started,
        official.start_broker(folder, started.address, config=SETTINGS) as broker,
    ):
        yield started.address, broker.address


@pytest.fixture
def nameserver(cluster: tuple[str, str]) -> str:
    return cluster[0]


async def test_signed_requests_are_taken_whatever_they_carry(nameserver: str, tmp_path: Path) -> None:
    async with Client(nameserver, credentials=Credentials(USER, SECRET)) as mq:
        topic = await fresh(mq, "Signed")
        async with mq.producer("signers") as producer, mq.consumer("signed", topic) as consumer:
            await producer.send(topic, "grüße", tags="ä", keys=["a", "b"], properties={"süd": "x y"})
            await producer.send_batch(topic, [b"1", b"2"])
            await producer.send_oneway(topic, b"3")
            assert len(await take(consumer, 4)) == 4
            await consumer.commit()


@pytest.mark.parametrize(
    ("credentials", "remark"),
    [(None, "username cannot be null"), (Credentials(USER, "wrong123"), "check signature failed")],
    ids=["unsigned", "wrong secret"],
)
async def test_other_requests_are_refused(
    nameserver: str, credentials: Credentials | None, remark: str
) -> None:
    async with Client(nameserver, credentials=Credentials(USER, SECRET)) as mq:
        topic = await fresh(mq, "Guarded")
    async with Client(nameserver, credentials=credentials) as stranger, stranger.producer() as producer:
        async with asyncio.timeout(30):
            with pytest.raises(BrokerRefused, match=remark):
                await producer.send(topic, b"x")


@pytest.mark.parametrize("codec", ["json", "rocketmq"])
async def test_that_we_sign_the_time_too_does_no_harm(cluster: tuple[str, str], codec: str) -> None:
    """The official servers take the field for one that they do not know."""
    nameserver, broker = cluster
    topic, pull = f"Timed-{codec}", {"suspendTimeoutMillis": "0", "subscription": "*", "sysFlag": "4"}
    queue = {"topic": topic, "queueId": "0"}
    send = send_request(topic, b"x", properties="a\x01b\x02")
    remoting = RemotingClient(config=RemotingClientConfig(codec=codec), signer=Signing(USER, SECRET))
    try:
        for addr, code, header, body in (
            (broker, 17, topic_fields(topic, 1), b""),
            (broker, send.code, send.ext, send.body),
            (broker, 30, queue, b""),
            (broker, 34, {}, b'{"clientID":"c","producerDataSet":[],"consumerDataSet":[]}'),
            (broker, 11, pull | queue | {"consumerGroup": "CID_RMQ_SYS_g", "queueOffset": "0"}, b""),
            (broker, 26, {}, b""),
            (nameserver, 106, {}, b""),
        ):
            fields = {name: value for name, value in header.items() if value != ""}
            fields |= {"maxMsgNums": "1", "commitOffset": "0", "subVersion": "0"} if code == 11 else {}
            answer = await remoting.request(addr, code, fields, body)
            assert answer.code == (19 if code == 11 and not answer.body else 0), (code, answer.remark)
    finally:
        await remoting.close()
