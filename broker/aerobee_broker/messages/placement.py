"""Where a message goes instead of its topic for a while: delays and half messages.

Touches  nothing.

Whoever keeps messages back gives a rule; a send, a retry and a committed transaction ask for the place of their
message. Only messages that carry a property or a flag of `needs_place` are asked about, so ordinary ones pay
nothing.

Invariants
- A message is changed by at most one rule, the first that applies.
- What no rule takes is stored in its own topic.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from aerobee_broker.messages.stored_properties import stored_form
from aerobee_proto import properties
from aerobee_proto.codes import ResponseCode, SysFlag
from aerobee_proto.errors import RequestError
from aerobee_proto.inner_batch import COUNT_MAX
from aerobee_store.queues.batch_queue import inner_count
from aerobee_store.terms.messages import NewMessage

__all__ = ["SPECIAL_PROPERTIES", "PlacementRules", "Rule", "is_transaction", "moved", "needs_place"]

NO_DELAY: Final = re.compile(r"-\d+|\+?0+", re.ASCII)  # levels that mean none; dead letters carry -1
TIMER_PROPERTIES: Final = frozenset(
    {properties.TIMER_DELAY_SEC, properties.TIMER_DELAY_MS, properties.TIMER_DELIVER_MS}
)
# Properties that ask for something other than "store it and show it".
SPECIAL_PROPERTIES: Final = frozenset(
    {
        properties.DELAY,
        properties.TIMER_DELAY_SEC,
        properties.TIMER_DELAY_MS,
        properties.TIMER_DELIVER_MS,
        properties.TRANSACTION_PREPARED,
        properties.INNER_NUM,
    }
)

Rule = Callable[[NewMessage, Mapping[str, str]], NewMessage | None]
"""The message in the form in which it waits, or None when the rule does not apply. RequestError refuses the message."""


def needs_place(sys_flag: int, mapping: Mapping[str, str]) -> bool:
    """Whether a message with these properties asks for more than its place in the topic."""
    return is_transaction(sys_flag, mapping) or _is_delayed(mapping) or properties.INNER_NUM in mapping


def _is_delayed(mapping: Mapping[str, str]) -> bool:
    return not NO_DELAY.fullmatch(mapping.get(properties.DELAY, "0")) or not TIMER_PROPERTIES.isdisjoint(
        mapping
    )


def is_transaction(sys_flag: int, mapping: Mapping[str, str]) -> bool:
    """Whether a message belongs to a transaction, by either of the marks that clients set."""
    marked = mapping.get(properties.TRANSACTION_PREPARED, "").lower() == "true"
    return marked or bool(sys_flag & SysFlag.TRANSACTION_MASK)


def moved(
    message: NewMessage, topic: str, queue_id: int, mapping: Mapping[str, str], *, sys_flag: int | None = None
) -> NewMessage:
    """A copy of the message for another queue, with these properties instead of its own."""
    return NewMessage(
        topic,
        queue_id,
        message.flag,
        message.sys_flag if sys_flag is None else sys_flag,
        message.born_timestamp,
        message.born_host,
        message.store_host,
        message.reconsume_times,
        message.prepared_transaction_offset,
        message.body,
        *stored_form(mapping),
    )


class PlacementRules:
    """The rules, in the order in which they are asked."""

    def __init__(self, takes_batches: Callable[[str], bool], rules: Sequence[Rule]) -> None:
        """`takes_batches`: whether a message to a topic may be a whole batch."""
        self._takes_batches = takes_batches
        self._rules: tuple[Rule, ...] = (self._check_inner_batch, *rules)

    def place(self, message: NewMessage, mapping: Mapping[str, str]) -> NewMessage:
        """The message as it is to be stored: itself, or the form in which it waits. RequestError: refused."""
        for rule in self._rules:
            placed = rule(message, mapping)
            if placed is not None:
                return placed
        return message

    def _check_inner_batch(self, message: NewMessage, mapping: Mapping[str, str]) -> None:
        is_batch = bool(message.sys_flag & SysFlag.INNER_BATCH)
        if not is_batch and properties.INNER_NUM not in mapping:
            return
        reason = None
        if not self._takes_batches(message.topic):
            reason = "its topic does not take batches as one message (queue.type=BatchCQ); send a plain batch"
        elif not is_batch:
            reason = "its flags do not say that it is a batch"
        elif inner_count(message.properties) is None:
            said = mapping.get(properties.INNER_NUM, "")[:40]
            reason = f"INNER_NUM is {said!r}, not a number from 1 to {COUNT_MAX}"
        elif is_transaction(message.sys_flag, mapping) or _is_delayed(mapping):
            reason = "a batch cannot be delayed, nor be part of a transaction; send its messages one by one"
        if reason is not None:
            raise RequestError(
                ResponseCode.MESSAGE_ILLEGAL,
                f"message to topic {message.topic} with property INNER_NUM or the flag of a batch: {reason}",
            )
