"""Messages that were stored before, sent again as they were: with their ids, properties and times of birth.

    replay = client.replay()
    await replay.send(queue, [RecordedMessage(body, properties, born_timestamp_ms), ...])

Touches  brokers through `Peers`.

An ordinary producer gives every message a new id and the present time. Here both come from the caller. A request has
one time of birth for all its messages, so those travel together whose times lie within `born_within_ms`.

Failures  What may pass is tried again for `give_up_s`. A request whose answer was lost is sent again: its messages may
          be there twice, under one id.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from aerobee.errors import BrokerRefused, BrokerUnreachable, ClientError, NoBroker, RequestTimeout
from aerobee.net.peers import Peers
from aerobee.net.route_table import RouteTable
from aerobee.producing.delivery import ELSEWHERE_CODES, LATER_CODES, STATUS_BY_CODE, TEMPLATE_QUEUES
from aerobee.terms.config import check_settings
from aerobee.terms.routes import MessageQueue
from aerobee_proto.batch import ENTRY_OVERHEAD, encode_batch_entry
from aerobee_proto.codes import RequestCode
from aerobee_proto.compression import compress_body
from aerobee_proto.frames import Command
from aerobee_proto.names import TEMPLATE_TOPIC

__all__ = ["RecordedMessage", "Replay", "ReplayConfig"]

RETRY_MAX_S: Final = 3.0


class RecordedMessage(NamedTuple):
    """One message as it is to be stored: `properties` in property form."""

    body: bytes
    properties: bytes
    born_timestamp_ms: int
    flag: int = 0


@dataclass(slots=True, frozen=True, kw_only=True)
class ReplayConfig:
    """How messages are sent again.

    group            producer group
    batch_count      messages of one request
    batch_bytes      bytes of one request
    born_within_ms   messages travel together that were born at most so long after the first of them, and get its time
    compress_over    larger bodies are compressed, so that brokers take what inflates to more than their limit
    timeout_s        of one request
    retry_s          pause after a failed request, growing
    give_up_s        raise what failed when it failed for so long
    """

    group: str = "AEROBEE_PRODUCER"
    batch_count: int = 1024
    batch_bytes: int = 512 << 10
    born_within_ms: int = 0
    compress_over: int = 1 << 20
    timeout_s: float = 10.0
    retry_s: float = 0.2
    give_up_s: float = 30.0

    def __post_init__(self) -> None:
        check_settings(self)


class Replay:
    """Sends recorded messages. Made by `Client.replay()`."""

    def __init__(self, config: ReplayConfig, *, peers: Peers, routes: RouteTable) -> None:
        self._config = config
        self._peers = peers
        self._routes = routes

    async def queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues one can send to, ordered by broker and queue id. NoRoute."""
        return (await self._routes.for_publish(topic)).publish

    async def send(self, queue: MessageQueue, messages: Sequence[RecordedMessage]) -> None:
        """Store messages in a queue, in their order. ClientError: a part of them may be stored."""
        await self._routes.for_publish(queue.topic)
        for batch in _batches(messages, self._config):
            await self._send(queue, batch)

    async def _send(self, queue: MessageQueue, batch: Sequence[RecordedMessage]) -> None:
        loop = asyncio.get_running_loop()
        until, pause_s = loop.time() + self._config.give_up_s, self._config.retry_s
        while True:
            try:
                await self._try(queue, batch)
            except (RequestTimeout, BrokerUnreachable, NoBroker, BrokerRefused) as failed:
                if not _may_pass(failed) or loop.time() + pause_s > until:
                    raise
                self._routes.refresh_soon(queue.topic)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, RETRY_MAX_S)
            else:
                return

    async def _try(self, queue: MessageQueue, batch: Sequence[RecordedMessage]) -> None:
        what = f"send again to {queue}"
        addr = self._routes.master_addr(queue.topic, queue.broker_name)
        if len(batch) == 1:
            answer = await self._send_one(what, addr, queue, batch[0])
        else:
            body = b"".join([encode_batch_entry(one.body, one.properties, one.flag) for one in batch])
            header = self._header(queue, batch[0]) | {"i": "", "m": "true"}
            answer = await self._peers.request(
                what, addr, RequestCode.SEND_BATCH_MESSAGE, header, body, self._config.timeout_s
            )
        if answer.code not in STATUS_BY_CODE:
            raise BrokerRefused(what, addr, answer.code, answer.remark)

    async def _send_one(self, what: str, addr: str, queue: MessageQueue, one: RecordedMessage) -> Command:
        header = self._header(queue, one)
        body = one.body
        if len(body) > self._config.compress_over:
            packed, flag = compress_body(body)
            if len(packed) < len(body):
                body, header["f"] = packed, str(flag)
        return await self._peers.request(
            what, addr, RequestCode.SEND_MESSAGE_V2, header, body, self._config.timeout_s
        )

    def _header(self, queue: MessageQueue, first: RecordedMessage) -> dict[str, str]:
        return {
            "a": self._config.group,
            "b": queue.topic,
            "c": TEMPLATE_TOPIC,
            "d": TEMPLATE_QUEUES,
            "e": str(queue.queue_id),
            "f": "0",
            "g": str(first.born_timestamp_ms),
            "h": str(first.flag),
            "i": first.properties.decode("utf-8", "replace"),
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }


def _may_pass(failed: ClientError) -> bool:
    return not isinstance(failed, BrokerRefused) or failed.code in (LATER_CODES | ELSEWHERE_CODES)


def _batches(messages: Sequence[RecordedMessage], config: ReplayConfig) -> Iterator[list[RecordedMessage]]:
    """Messages that may travel together, in order."""
    held: list[RecordedMessage] = []
    size = 0
    for one in messages:
        more = len(one.body) + len(one.properties) + ENTRY_OVERHEAD
        fits = (
            held
            and len(held) < config.batch_count
            and size + more <= config.batch_bytes
            and 0 <= one.born_timestamp_ms - held[0].born_timestamp_ms <= config.born_within_ms
        )
        if held and not fits:
            yield held
            held, size = [], 0
        held.append(one)
        size += more
    if held:
        yield held
