"""What every way to ask for popped messages, or for more time for them, must keep to."""

from typing import Final

from aerobee_broker.pop.checkpoints import COUNT_MAX
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import INTERNAL_TOPIC_LENGTH_MAX, RETRY_PREFIX

__all__ = ["INVISIBLE_MS_MAX", "check_attempt", "check_count", "check_invisible", "check_retry_name"]

INVISIBLE_MS_MAX: Final = 259_200_000  # three days, as far as RocketMQ's timer goes
ATTEMPT_ID_CHARS_MAX: Final = 512


def check_count(count: int) -> None:
    """RequestError unless so many messages may be asked for at once."""
    if not 1 <= count <= COUNT_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER, f"maxMsgNums {count} is not within 1 to {COUNT_MAX}"
        )


def check_attempt(attempt_id: str | None) -> None:
    """RequestError for an id that is too long: it is kept with the queue, and on disk."""
    if attempt_id is not None and len(attempt_id) > ATTEMPT_ID_CHARS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"attemptId has {len(attempt_id)} characters, at most {ATTEMPT_ID_CHARS_MAX} are allowed",
        )


def check_invisible(invisible_ms: int) -> None:
    """RequestError unless a message may be invisible for so long."""
    if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"invisibleTime {invisible_ms} is not within 0 to {INVISIBLE_MS_MAX} ms",
        )


def check_retry_name(group: str, topic: str) -> None:
    """RequestError when the group's retry topic of this topic would have too long a name."""
    size = len(RETRY_PREFIX) + len(group) + 1 + len(topic)
    if size > INTERNAL_TOPIC_LENGTH_MAX:
        raise RequestError(
            ResponseCode.INVALID_PARAMETER,
            f"the names of the group and of topic {topic} are too long together: their retry topic"
            f" would have {size} characters, at most {INTERNAL_TOPIC_LENGTH_MAX} are allowed",
        )
