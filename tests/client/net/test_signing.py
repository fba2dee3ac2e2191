from aerobee import Client
from aerobee.net.signing import signer_of
from aerobee.terms.config import Credentials
from aerobee_access.signature import FRESHNESS, signed_with
from aerobee_proto.codes import RequestCode
from aerobee_proto.headers import ConsumerGroupHeader
from aerobee_remoting.ends.client import Header
from client.fakes import fake_cluster


def signed(header: Header, body: bytes, credentials: Credentials) -> dict[str, str]:
    """The fields of the first request of a connection to a server that gives no challenge."""
    signer = signer_of(credentials)
    assert signer is not None
    return signer({})(RequestCode.GET_ROUTEINFO_BY_TOPIC, header, body)


def test_without_credentials_nobody_signs() -> None:
    assert signer_of(None) is None


def test_a_security_token_is_signed_like_any_field_and_typed_headers_too() -> None:
    credentials = Credentials("ak", "secret", "token")
    assert signed(None, b"", credentials)["SecurityToken"] == "token"
    typed = signed(ConsumerGroupHeader(consumer_group="g"), b"", credentials)
    assert typed["consumerGroup"] == "g"
    for fields in (typed, signed({"consumerGroup": "g"}, b"", credentials)):
        assert signed_with(b"secret", fields, 479, b"") is not None
        assert signed_with(b"Secret", fields, 479, b"") is None


def test_secrets_are_not_shown() -> None:
    assert "secret" not in repr(Credentials("ak", "secret", "token-secret"))


async def test_every_request_of_a_client_with_credentials_is_signed() -> None:
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr, credentials=Credentials("ak", "secret")) as mq,
        mq.producer("p") as producer,
        mq.consumer("g", "T") as consumer,
    ):
        await producer.send("T", b"x")
        await producer.send_oneway("T", b"x")
        await consumer.close()
        await cluster.broker.wait_asked(RequestCode.UNREGISTER_CLIENT)
        asked = [ext for code, ext, _ in cluster.broker.requests if code != RequestCode.GET_CODECS]
        assert all(ext.get("AccessKey") == "ak" and ext.get("Signature") for ext in asked)
        numbers = [int(ext[FRESHNESS].split(":")[3]) for ext in asked]
        assert numbers == list(range(1, len(asked) + 1))
        assert all(ext.get("Signature") for _, ext, _ in cluster.nameserver.requests)
