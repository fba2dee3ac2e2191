"""What several requests refuse, said once: the same fault has the same code and the same words everywhere.

Unknown topics and groups are refused by their tables (`TopicTable.require`, `SubscriptionGroups.require` and
`require_known`), what only one request or one rule refuses stands there.

Touches  nothing.

    check_...       return when all is well, and raise RequestError otherwise
    ..._refusal     make the RequestError for what has failed
"""

from enum import IntEnum
from typing import Final

from aerobee_broker.messages.promises import NotYetSafe
from aerobee_broker.settings.config import BrokerConfig
from aerobee_proto import names, properties
from aerobee_proto.bodies import SubscriptionGroupConfig, TopicConfig
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_store.faults.errors import StoreError, TooFewCopies
from aerobee_store.terms.messages import RECORD_EXTRA_MAX, Appended, NewMessage, PutStatus

__all__ = [
    "NO_LOG_FILE",
    "Forbidden",
    "ForbiddenBy",
    "check_body",
    "check_broker_readable",
    "check_broker_writable",
    "check_consumes",
    "check_queue",
    "check_readable",
    "check_sendable",
    "check_writable",
    "group_put_refusal",
    "has_no_log_file",
    "own_put_refusal",
    "put_refusal",
    "store_refusal",
]

NO_LOG_FILE: Final = "no new commit log file could be made"


class ForbiddenBy(IntEnum):
    """Who forbids to read; the numbers are RocketMQ's (`forbiddenType`)."""

    BROKER = 1
    GROUP = 2
    TOPIC = 3
    BROADCAST = 4
    SUBSCRIPTION = 5


class Forbidden(RequestError):
    """NO_PERMISSION to read; it says who forbids."""

    def __init__(self, by: ForbiddenBy, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.by = by


# --- writing ------------------------------------------------------------------------------------------------------


def check_broker_writable(config: BrokerConfig, *, code: int = ResponseCode.NO_PERMISSION) -> None:
    """`code` when brokerPermission is without write."""
    if not config.broker_permission & Perm.WRITE:
        raise RequestError(
            code,
            f"broker {config.broker_name} takes no messages: brokerPermission is {config.broker_permission}",
        )


def check_sendable(topic: str) -> None:
    """INVALID_PARAMETER for what is no name; NO_PERMISSION for topics in which the broker itself keeps notes."""
    names.check_topic(topic)
    if names.is_kept_topic(topic):
        raise RequestError(ResponseCode.NO_PERMISSION, f"topic {topic} is kept for the broker itself")


def check_writable(topic: TopicConfig) -> None:
    """NO_PERMISSION when the topic's permission is without write."""
    if not topic.perm & Perm.WRITE:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"topic {topic.topic_name} may not be written to: its permission is {topic.perm}",
        )


def check_body(what: str, topic: str, size: int, size_max: int) -> None:
    """SYSTEM_ERROR for a body of 0 bytes, MESSAGE_ILLEGAL for one of more than `size_max`. `what` it is the body of."""
    if size == 0:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"{what} to topic {topic} has no body")
    if size > size_max:
        raise RequestError(
            ResponseCode.MESSAGE_ILLEGAL,
            f"body of a {what} to topic {topic} has {size} bytes, at most {size_max} are allowed (maxMessageSize)",
        )


# --- reading ------------------------------------------------------------------------------------------------------


def check_broker_readable(config: BrokerConfig) -> None:
    """Forbidden when brokerPermission is without read."""
    if not config.broker_permission & Perm.READ:
        raise Forbidden(ForbiddenBy.BROKER, f"broker {config.broker_name} may not be read from")


def check_readable(topic: TopicConfig) -> None:
    """Forbidden when the topic's permission is without read."""
    if not topic.perm & Perm.READ:
        raise Forbidden(
            ForbiddenBy.TOPIC,
            f"topic {topic.topic_name} may not be read from: its permission is {topic.perm}",
        )


def check_consumes(group: SubscriptionGroupConfig) -> None:
    """Forbidden when the group has consuming turned off."""
    if not group.consume_enable:
        raise Forbidden(
            ForbiddenBy.GROUP, f"group {group.group_name} may not consume: consumeEnable is false"
        )


def check_queue(topic: str, queue_id: int, count: int, *, code: int = ResponseCode.INVALID_PARAMETER) -> None:
    """`code` for a queue that a topic with `count` queues does not have."""
    if not 0 <= queue_id < count:
        raise RequestError(
            code,
            f"queue {queue_id} of topic {topic[:255]} does not exist: it has the queues 0 to {count - 1}",
        )


# --- what the store refused ---------------------------------------------------------------------------------------


def store_refusal(
    failed: StoreError, *, code: int = ResponseCode.SERVICE_NOT_AVAILABLE, what: str = ""
) -> RequestError:
    """For a store that takes nothing; `what` could not be done stands in front. Without copies: SYSTEM_ERROR; stored,
    and not known to be safe: what it lacks."""
    if isinstance(failed, TooFewCopies):
        code = ResponseCode.SYSTEM_ERROR
    elif isinstance(failed, NotYetSafe):
        code = ResponseCode(failed.code)
    return RequestError(code, f"{what}{failed}")


def has_no_log_file(done: Appended) -> bool:
    """Whether the message was refused for want of room: it may be taken later, others of its kind will not be."""
    return done.status is PutStatus.CREATE_MAPPED_FILE_FAILED


def put_refusal(message: NewMessage, done: Appended) -> RequestError:
    """For a message that the store refused: SYSTEM_ERROR without room, MESSAGE_ILLEGAL when it is too large."""
    if has_no_log_file(done):
        return RequestError(ResponseCode.SYSTEM_ERROR, f"{NO_LOG_FILE}; is the disk full?")
    what = "properties are" if done.status is PutStatus.PROPERTIES_SIZE_EXCEEDED else "message is"
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"{what} too large: body {len(message.body)} bytes, properties {len(message.properties)} bytes "
        f"with what the broker adds (at most {properties.PROPERTIES_SIZE_MAX}), topic {message.topic}",
    )


def group_put_refusal(group: list[NewMessage], done: Appended, config: BrokerConfig) -> RequestError:
    """Why none of a batch was stored. Each message alone is small enough: that has been looked at."""
    if done.status is not PutStatus.MESSAGE_ILLEGAL or len(group) == 1:
        return put_refusal(max(group, key=lambda message: len(message.properties)), done)
    limit = min(config.max_message_size + RECORD_EXTRA_MAX, config.mapped_file_size_commit_log)
    return RequestError(
        ResponseCode.MESSAGE_ILLEGAL,
        f"the {len(group)} messages of a batch to topic {group[0].topic} are too large together as they are "
        f"stored: less than {limit} bytes are allowed (maxMessageSize and 64 KiB, or one file of the log): "
        "send it in parts",
    )


def own_put_refusal(done: Appended, what: str = "") -> RequestError:
    """For a message that the broker makes out of another, at somebody's request: SYSTEM_ERROR and the status by name,
    as in RocketMQ; `what` could not be done stands in front."""
    return RequestError(ResponseCode.SYSTEM_ERROR, f"{what}{done.status.name}")
