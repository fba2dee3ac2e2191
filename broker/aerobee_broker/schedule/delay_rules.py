"""Which messages wait before their readers see them, and where: fixed levels, and times of a message's own.

Touches  nothing; tells `Wakeups` that a message is about to be scheduled.

    DELAY = n > 0        queue n - 1 of SCHEDULE_TOPIC_XXXX; n beyond the last level counts as the last
    TIMER_DELAY_SEC, TIMER_DELAY_MS, TIMER_DELIVER_MS (asked in this order)
                         queue 0 of rmq_sys_wheel_timer, due at now + s * 1000, now + ms, ms since the epoch

The message keeps its properties and gets REAL_TOPIC and REAL_QID; a timer message gets TIMER_OUT_MS too, its time
in whole steps of `timerPrecisionMs`, always below it by up to one step: as RocketMQ writes it, which delivers one
step later. With a level, times are dropped. A time that has passed is no delay.
"""

from collections.abc import Callable, Mapping

from aerobee_broker.messages.placement import TIMER_PROPERTIES, moved
from aerobee_broker.messages.stored_properties import whole_number
from aerobee_broker.schedule.wakeups import Wakeups
from aerobee_broker.settings.config import LiveConfig, delay_levels
from aerobee_proto import properties
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import SCHEDULE_TOPIC, TIMER_TOPIC
from aerobee_store.terms.messages import NewMessage

__all__ = ["DelayRules", "due_ms"]


def due_ms(mapping: Mapping[str, str], now_ms: int) -> int:
    """When a message with these timer properties that came at `now_ms` is due. ValueError: not to be read."""
    for name, unit_ms, since_ms in (
        (properties.TIMER_DELAY_SEC, 1000, now_ms),
        (properties.TIMER_DELAY_MS, 1, now_ms),
        (properties.TIMER_DELIVER_MS, 1, 0),
    ):
        text = mapping.get(name)
        if text is not None:
            number = whole_number(text)
            if number is None:
                raise ValueError(f"property {name} is {text[:40]!r}, which is not a number")
            return since_ms + number * unit_ms
    raise ValueError("there is no timer property")


class DelayRules:
    """Delayed messages go to the topics in which they wait. `wakeups` is told before each append."""

    def __init__(self, live: LiveConfig, clock: Callable[[], int], wakeups: Wakeups) -> None:
        self._live = live
        self._clock = clock
        self._level_count = len(delay_levels(live.value.message_delay_level))
        self._wakeups = wakeups

    def place(self, message: NewMessage, mapping: Mapping[str, str]) -> NewMessage | None:
        """A rule for `PlacementRules`. RequestError for a delay that cannot be read, is too long or is not served."""
        level = self._level(message.topic, mapping)
        if level > 0:
            return self._at_level(message, mapping, level)
        if TIMER_PROPERTIES.isdisjoint(mapping) or properties.TIMER_OUT_MS in mapping:
            return None
        return self._timed(message, mapping)

    def _level(self, topic: str, mapping: Mapping[str, str]) -> int:
        text = mapping.get(properties.DELAY)
        if text is None:
            return 0
        level = whole_number(text)
        if level is None:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"delayed message to topic {topic}: property DELAY is {text[:40]!r}, not a level",
            )
        return min(level, self._level_count)

    def _at_level(self, message: NewMessage, mapping: Mapping[str, str], level: int) -> NewMessage:
        scheduled = {name: value for name, value in mapping.items() if name not in TIMER_PROPERTIES}
        scheduled[properties.DELAY] = str(level)
        self._remember_target(scheduled, message)
        self._wakeups.at_level(level)
        return moved(message, SCHEDULE_TOPIC, level - 1, scheduled)

    @staticmethod
    def _remember_target(scheduled: dict[str, str], message: NewMessage) -> None:
        scheduled[properties.REAL_TOPIC] = message.topic
        scheduled[properties.REAL_QUEUE_ID] = str(message.queue_id)

    def _timed(self, message: NewMessage, mapping: Mapping[str, str]) -> NewMessage:
        config = self._live.value
        if not config.timer_wheel_enable:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"delayed message to topic {message.topic}: timer messages are turned off (timerWheelEnable)",
            )
        now_ms = self._clock()
        try:
            due = due_ms(mapping, now_ms)
        except ValueError as error:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL, f"delayed message to topic {message.topic}: {error}"
            ) from error
        if due <= now_ms:
            if properties.TIMER_DEL_UNIQKEY in mapping:
                raise RequestError(ResponseCode.MESSAGE_ILLEGAL, "the message to recall is delivered already")
            return message
        if due - now_ms > config.timer_max_delay_sec * 1000:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"delayed message to topic {message.topic}: it is due in {(due - now_ms) // 1000} s, "
                f"at most {config.timer_max_delay_sec} s are allowed (timerMaxDelaySec)",
            )
        scheduled = dict(mapping)
        scheduled[properties.TIMER_OUT_MS] = str(
            (due - 1) // config.timer_precision_ms * config.timer_precision_ms
        )
        self._remember_target(scheduled, message)
        self._wakeups.timed()
        return moved(message, TIMER_TOPIC, 0, scheduled)
