"""What is stored of the properties that were sent, next to what the official broker stores of the same requests."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from aerobee_proto.batch import BatchEntry
from aerobee_proto.properties import decode_properties
from clusters import Cluster
from plain_remoting import make_topic
from system.running import talking, text_of

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300)]

NAMED_TWICE = {"UNIQ_KEY"}
SENT = [
    {"WAIT": "false"},
    {"WAIT": "true"},
    {"UNIQ_KEY": "K", "WAIT": "false", "TAGS": "a"},
    {"WAIT": "true", "UNIQ_KEY": "K", "KEYS": "z"},
    {"UNIQ_KEY": "K", "WAIT": "maybe"},
    {"UNIQ_KEY": "K", "MSG_REGION": "there", "TRACE_ON": "no", "CLUSTER": "other"},
    {"A": "1", "Grüße": "東京"},
    {},
]


async def stored(cluster: Cluster, topic: str, how: str) -> list[list[tuple[str, str]]]:
    """The sorted properties of all that was sent in one way; a key that the broker made is only named."""
    make_topic(cluster.nameserver.address, cluster.broker.address, topic)
    async with talking(int(cluster.broker.address.rpartition(":")[2])) as client:
        for sent in SENT:
            text = text_of(sent)
            if how == "single":
                answer = await client.put(topic, properties=text)
            elif how == "each of a batch":
                answer = await client.put_batch(topic, [BatchEntry(0, b"1", text), BatchEntry(0, b"2", text)])
            else:
                own = text_of({"B": "2", "UNIQ_KEY": "K2"})
                answer = await client.put_batch(topic, [BatchEntry(0, b"1", own)], properties=text)
            assert answer.code == 0, answer.remark
        records = await client.records(topic)
        count = len(SENT) * (2 if how == "each of a batch" else 1)
        async with asyncio.timeout(60):
            while len(records) < count:  # an answer to a send does not say that it may be read
                records += await client.records(topic, len(records), sysFlag=6, suspendTimeoutMillis=1_000)
    made = {sent.get("UNIQ_KEY") for sent in SENT} | {"K2"}
    return [
        sorted(
            (name, value if name != "UNIQ_KEY" or value in made else "made")
            for name, value in decode_properties(record.properties).items()
            if name != "__CRC32C"  # of the whole record, ours alone
        )
        for record in records
    ]


@pytest.mark.parametrize("how", ["single", "each of a batch", "a whole batch"])
async def test_properties_are_stored_as_the_original_does(shared: Callable[[str], Cluster], how: str) -> None:
    """`WAIT` was taken out: whoever read the message back could not see how it had been sent."""
    topic = "P-" + how.replace(" ", "-")
    ours, theirs = [await stored(shared(kind), topic, how) for kind in ("ours", "official")]
    if how != "single":
        # The original gives the messages of a batch no key; here they get one, by which they are found.
        theirs = [sorted({**dict(of), "UNIQ_KEY": dict(of).get("UNIQ_KEY", "made")}.items()) for of in theirs]
    if how == "a whole batch":
        # Of a name that both have, the message's own value counts here; the original stores both.
        ours, theirs = (
            [[p for p in of if p[0] not in NAMED_TWICE] for of in side] for side in (ours, theirs)
        )
    assert ours == theirs
