"""Our signatures, judged by the official broker with its access control on."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import official
from aerobee import BrokerRefused, Client, Credentials
from client_scenarios import fresh, take

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
def nameserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("access")
    with official.start_nameserver(folder) as started:
        broker = official.start_broker(folder, started.address, config=SETTINGS)
        try:
            yield started.address
        finally:
            broker.kill()


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
