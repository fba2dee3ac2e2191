from aerobee import Client
from aerobee.net.signing import signed
from aerobee.terms.config import Credentials
from aerobee_proto.codes import RequestCode
from aerobee_proto.headers import ConsumerGroupHeader
from client.fakes import fake_cluster


def test_the_signature_covers_all_values_by_name_and_the_body() -> None:
    """The expected text: printf 'akGT1body' | openssl dgst -sha1 -hmac secret -binary | base64"""
    fields = signed({"topic": "T1", "group": "G"}, b"body", Credentials("ak", "secret"))
    assert fields == {
        "topic": "T1",
        "group": "G",
        "AccessKey": "ak",
        "Signature": "p0EgXaVrSRn6oaumI0UFCJcCOA8=",
    }


def test_a_security_token_is_signed_like_any_field_and_typed_headers_too() -> None:
    credentials = Credentials("ak", "secret", "token")
    assert signed(None, b"", credentials)["SecurityToken"] == "token"
    typed = signed(ConsumerGroupHeader(consumer_group="g"), b"", credentials)
    assert typed == signed({"consumerGroup": "g"}, b"", credentials)
    assert typed["Signature"] != signed({"consumerGroup": "g"}, b"", Credentials("ak", "secret"))["Signature"]


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
        assert all(ext.get("Signature") for _, ext, _ in cluster.nameserver.requests)
