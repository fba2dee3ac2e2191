"""Names of topics, groups and queues: what they may hold, which are special, how they are told apart in tables.

Touches  nothing.
Topic    1..127 characters, each a percent sign, vertical bar, ASCII letter, digit, underscore or hyphen; topics that
         brokers make of group names (`%RETRY%group`, `%DLQ%group`, POP's `%RETRY%group_topic` and
         `%RETRY%group+topic`) may have up to 255.
Group    the same characters, 1..255.

Invariants
- A name that passes has no separator, dot or blank: it is safe as the name of a folder, and one byte a character.
"""

import re
from typing import Final, NamedTuple

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError

__all__ = [
    "BENCHMARK_TOPIC",
    "CHECKPOINT_TOPIC",
    "CHECK_MAX_TIME_TOPIC",
    "DLQ_PREFIX",
    "GROUP_LENGTH_MAX",
    "HALF_TOPIC",
    "INTERNAL_TOPIC_LENGTH_MAX",
    "KEPT_TOPICS",
    "MEMBER_GROUP_TOPIC_PREFIX",
    "OFFSET_MOVED_TOPIC",
    "OP_HALF_TOPIC",
    "REPLY_TOPIC_SUFFIX",
    "RETRY_PREFIX",
    "REVIVE_GROUP",
    "REVIVE_TOPIC_PREFIX",
    "SCHEDULE_TOPIC",
    "SELF_TEST_TOPIC",
    "SYSTEM_GROUPS",
    "SYSTEM_GROUP_PREFIX",
    "SYSTEM_TOPICS",
    "SYSTEM_TOPIC_PREFIX",
    "TEMPLATE_TOPIC",
    "TIMER_TOPIC",
    "TOOLS_GROUP",
    "TOPIC_LENGTH_MAX",
    "TRACE_TOPIC",
    "TRANSACTION_GROUP",
    "BrokerQueue",
    "GroupQueue",
    "GroupTopic",
    "QueueKey",
    "check_group",
    "check_topic",
    "dlq_topic",
    "is_internal_topic",
    "is_kept_topic",
    "is_retry_topic",
    "is_system_group",
    "is_system_topic",
    "reply_topic",
    "retry_topic",
]

TOPIC_LENGTH_MAX: Final = 127
INTERNAL_TOPIC_LENGTH_MAX: Final = 255
GROUP_LENGTH_MAX: Final = 255

RETRY_PREFIX: Final = "%RETRY%"
DLQ_PREFIX: Final = "%DLQ%"
REPLY_TOPIC_SUFFIX: Final = "_REPLY_TOPIC"
SYSTEM_TOPIC_PREFIX: Final = "rmq_sys_"

TEMPLATE_TOPIC: Final = "TBW102"  # its settings are those of topics that a send creates
SCHEDULE_TOPIC: Final = "SCHEDULE_TOPIC_XXXX"
BENCHMARK_TOPIC: Final = "BenchmarkTest"
HALF_TOPIC: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP_HALF_TOPIC: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
CHECK_MAX_TIME_TOPIC: Final = "TRANS_CHECK_MAX_TIME_TOPIC"
TRACE_TOPIC: Final = "RMQ_SYS_TRACE_TOPIC"
SELF_TEST_TOPIC: Final = "SELF_TEST_TOPIC"
OFFSET_MOVED_TOPIC: Final = "OFFSET_MOVED_EVENT"
CHECKPOINT_TOPIC: Final = "CHECKPOINT_TOPIC"
TIMER_TOPIC: Final = "rmq_sys_wheel_timer"
REVIVE_TOPIC_PREFIX: Final = "rmq_sys_REVIVE_LOG_"  # and the cluster's name
# And a broker's name: brokers find the others of their name through this topic's route.
MEMBER_GROUP_TOPIC_PREFIX: Final = "rmq_sys_SYNC_BROKER_MEMBER_"

SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
TOOLS_GROUP: Final = "TOOLS_CONSUMER"  # of readers that belong to no group; every broker knows it
TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
SYSTEM_GROUPS: Final = (
    TOOLS_GROUP,
    "FILTERSRV_CONSUMER",
    "SELF_TEST_C_GROUP",
    "CID_ONS-HTTP-PROXY",
    "CID_ONSAPI_PULL",
    "CID_ONSAPI_PERMISSION",
    "CID_ONSAPI_OWNER",
    TRANSACTION_GROUP,
)
SYSTEM_TOPICS: Final = frozenset(
    {
        TEMPLATE_TOPIC,
        SCHEDULE_TOPIC,
        BENCHMARK_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        TRACE_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
        CHECKPOINT_TOPIC,
    }
)
KEPT_TOPICS: Final = frozenset(
    {
        SCHEDULE_TOPIC,
        TIMER_TOPIC,
        HALF_TOPIC,
        OP_HALF_TOPIC,
        CHECK_MAX_TIME_TOPIC,
        SELF_TEST_TOPIC,
        OFFSET_MOVED_TOPIC,
    }
)

_ALLOWED: Final = re.compile(r"[%|A-Za-z0-9_-]*")
_ALLOWED_IN_WORDS: Final = "ASCII letters, digits, '%', '|', '_' and '-'"
# How much of a peer's name an error text repeats.
_SHOWN_LENGTH_MAX: Final = 64


class QueueKey(NamedTuple):
    """One queue of this broker."""

    topic: str
    queue_id: int


class BrokerQueue(NamedTuple):
    """One queue of any broker. They sort as official clients sort queues."""

    topic: str
    broker_name: str
    queue_id: int


class GroupTopic(NamedTuple):
    """A topic as a group reads it."""

    group: str
    topic: str


class GroupQueue(NamedTuple):
    """One queue as a group reads it: what offsets, check-points and orders belong to."""

    group: str
    topic: str
    queue_id: int


def check_topic(topic: str, *, internal: bool = False) -> None:
    """Raise RequestError (INVALID_PARAMETER) unless `topic` is a legal topic name.

    `internal` is for names that a broker itself makes of a group: retry and dead-letter topics may then have up
    to 255 characters. A name from a peer is checked without it.
    """
    long = internal and (topic.startswith((RETRY_PREFIX, DLQ_PREFIX)))
    if long and topic.startswith(RETRY_PREFIX):
        topic = topic.replace("+", "_", 1)  # between group and topic, in POP's newer names
    _check_name("topic", topic, INTERNAL_TOPIC_LENGTH_MAX if long else TOPIC_LENGTH_MAX)


def check_group(group: str) -> None:
    """Raise RequestError (INVALID_PARAMETER) unless `group` is a legal group name."""
    _check_name("group", group, GROUP_LENGTH_MAX)


def is_kept_topic(topic: str) -> bool:
    """Whether a broker keeps its own notes there (scheduled messages, check-points of POP): nobody may send to it.

    RocketMQ refuses sends to all of them but the timer's and POP's: whoever writes there decides what is delivered.
    """
    return topic in KEPT_TOPICS or topic.startswith(REVIVE_TOPIC_PREFIX)


def is_system_topic(topic: str, *, cluster_name: str = "", broker_name: str = "") -> bool:
    """Whether a topic belongs to the system: fixed names, the system prefix, and those of cluster and broker."""
    if topic in SYSTEM_TOPICS or topic.startswith(SYSTEM_TOPIC_PREFIX):
        return True
    if cluster_name and topic in (cluster_name, reply_topic(cluster_name)):
        return True
    return bool(broker_name) and topic == broker_name


def is_system_group(group: str) -> bool:
    """Whether a group is RocketMQ's own: every broker has it, and nobody asks how far it is."""
    return group in SYSTEM_GROUPS or group.startswith(SYSTEM_GROUP_PREFIX)


def is_retry_topic(topic: str) -> bool:
    """Whether a topic holds messages that a group will see again."""
    return topic.startswith(RETRY_PREFIX)


def is_internal_topic(topic: str) -> bool:
    """Whether a topic was made of a group name."""
    return topic.startswith((RETRY_PREFIX, DLQ_PREFIX))


def retry_topic(group: str) -> str:
    """The topic of a group's retries."""
    return RETRY_PREFIX + group


def dlq_topic(group: str) -> str:
    """The topic of the messages that a group gave up."""
    return DLQ_PREFIX + group


def reply_topic(cluster_name: str) -> str:
    """The topic that replies of a cluster are stored in."""
    return cluster_name + REPLY_TOPIC_SUFFIX


def _check_name(kind: str, name: str, length_max: int) -> None:
    if not name:
        raise RequestError(ResponseCode.INVALID_PARAMETER, f"the {kind} name is empty")
    if len(name) > length_max:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the {kind} name {_shown(name)} has {len(name)} characters, at most {length_max} are allowed",
        )
    legal = _ALLOWED.match(name)
    assert legal is not None, "the pattern matches the empty text"
    if legal.end() != len(name):
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the {kind} name {_shown(name)} has {name[legal.end()]!r} at character {legal.end() + 1};"
            f" allowed are {_ALLOWED_IN_WORDS}",
        )


def _shown(name: str) -> str:
    return repr(name) if len(name) <= _SHOWN_LENGTH_MAX else f"{name[:_SHOWN_LENGTH_MAX]!r}..."
