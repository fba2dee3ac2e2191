"""Heartbeats: who this client is and what it does, told to every broker it works with. Pure planners."""

from collections.abc import Iterable, Mapping
from typing import Final

from aerobee.terms.filters import Filter
from aerobee_proto.bodies import ConsumerData, HeartbeatData, ProducerData

__all__ = ["RESERVED_GROUP", "heartbeat_body", "pull_group"]

# The official clients name this producer group too; brokers know it.
RESERVED_GROUP: Final = "CLIENT_INNER_PRODUCER"


def heartbeat_body(
    client_id: str, producer_groups: Iterable[str], consumers: Iterable[ConsumerData]
) -> bytes:
    """Body of HEART_BEAT: what this client produces for and consumes for."""
    producers = sorted({RESERVED_GROUP, *producer_groups})
    return HeartbeatData(
        client_id=client_id,
        consumer_data_set=sorted(consumers, key=lambda consumer: consumer.group_name),
        producer_data_set=[ProducerData(group_name=group) for group in producers],
    ).to_bytes()


def pull_group(group: str, topics: Mapping[str, Filter], sub_version: int) -> ConsumerData:
    """A group of pull consumers: its topics and their filters.

    `sub_version` (epoch milliseconds) orders a client's subscriptions in time.
    """
    return ConsumerData(
        consume_type="CONSUME_ACTIVELY",
        group_name=group,
        subscription_data_set=[topics[topic].subscription(topic, sub_version) for topic in sorted(topics)],
    )
