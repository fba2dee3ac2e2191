"""What several handlers refuse, said once: the same fault has the same code and the same words everywhere.

Unknown topics and groups are refused by their tables (`TopicTable.require`, `SubscriptionGroups.require` and
`require_known`).

Touches  nothing.
"""

from aerobee_broker.config import BrokerConfig
from aerobee_proto import names
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import RequestError

__all__ = ["check_sendable", "check_takes_messages", "no_such_queue"]


def check_takes_messages(config: BrokerConfig) -> None:
    """NO_PERMISSION when brokerPermission is without write."""
    if not config.broker_permission & Perm.WRITE:
        raise RequestError(
            ResponseCode.NO_PERMISSION,
            f"broker {config.broker_name} takes no messages: brokerPermission is {config.broker_permission}",
        )


def check_sendable(topic: str) -> None:
    """INVALID_PARAMETER for what is no name; NO_PERMISSION for topics in which the broker itself keeps notes."""
    names.check_topic(topic)
    if names.is_kept_topic(topic):
        raise RequestError(ResponseCode.NO_PERMISSION, f"topic {topic} is kept for the broker itself")


def no_such_queue(
    topic: str, queue_id: int, count: int, *, code: int = ResponseCode.INVALID_PARAMETER
) -> RequestError:
    """The refusal of a queue of a topic that has `count` of them."""
    return RequestError(
        code, f"queue {queue_id} of topic {topic[:255]} does not exist: it has the queues 0 to {count - 1}"
    )
