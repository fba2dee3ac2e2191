"""`aerobee query --trace`: what clients say they did with a message."""

from aerobee import ClientConfig
from aerobee.sync import Client
from console.support import Runner

TOPIC = "r-traced"


def test_a_traced_message_shows_its_way(cluster: Runner, nameserver: str) -> None:
    assert cluster("topic", "create", TOPIC, "--queues", "1").code == 0
    config = ClientConfig(nameservers=(nameserver,), trace=True)
    with Client(config=config) as mq, mq.producer("tracing-shop") as producer:
        with mq.consumer("tracing", TOPIC) as consumer:
            sent = producer.send(TOPIC, "x", keys="k")
            for message in consumer:
                assert message.message_id == sent.message_id
                message.ack()
                break
        with producer.transaction(TOPIC, "y") as tx:
            tx.rollback()
    shown = cluster("query", TOPIC, "--id", sent.message_id, "--trace", "-o", "json").json["traces"]
    assert [(row["what"], row["group"], row["ended"]) for row in shown] == [
        ("sent", "tracing-shop", "stored"),
        ("delivered", "tracing", ""),
        ("settled", "tracing", "acked"),
    ]
    assert f"to {TOPIC}" in shown[0]["details"]
    by_place = cluster("query", TOPIC, "--id", sent.offset_message_id, "--trace")
    assert by_place.code == 0
    assert "delivered" in by_place.out
    ended = cluster("query", TOPIC, "--id", tx.transaction_id, "--trace", "-o", "json").json["traces"]
    assert ("transaction ended", "rolled back") in [(row["what"], row["ended"]) for row in ended]


def test_a_message_without_traces_says_how_to_get_some(cluster: Runner) -> None:
    sent = cluster("send", TOPIC, "plain", "-o", "json").json["sent"][0]
    answer = cluster("query", TOPIC, "--id", sent["message_id"], "--trace")
    assert answer.code == 5
    assert "traceTopicEnable" in answer.err
    wrong = cluster("query", TOPIC, "k", "--trace")
    assert (wrong.code, "--trace goes with --id" in wrong.err) == (2, True)
