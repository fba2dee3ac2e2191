"""A POP client by hand: it builds the names of messages as official clients do, from what the broker tells.

Touches  one socket.
"""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aerobee_broker.broker import Broker
from aerobee_proto import properties
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command
from aerobee_proto.javajson import dumps
from aerobee_proto.records import decode_records
from system.running import Talker, talking

__all__ = ["Popper", "extra_infos", "popping"]


def extra_infos(answer: Command, topic: str, *, broker_name: str = "test-a") -> list[str]:
    """The name of each popped message: POP_CK where the broker set it, put together otherwise."""
    starts = dict(part.rsplit(" ", 1) for part in answer.ext["startOffsetInfo"].split(";"))
    logged = dict(part.rsplit(" ", 1) for part in answer.ext["msgOffsetInfo"].split(";"))
    pop = [answer.ext[name] for name in ("popTime", "invisibleTime", "reviveQid")]
    found = []
    for record in decode_records(answer.body):
        assert record.topic == topic
        given = record.property_map.get(properties.POP_CK)
        if given is None:
            place = f"0 {record.queue_id}"
            assert str(record.queue_offset) in logged[place].split(",")
            given = " ".join(
                [starts[place], *pop, "0", broker_name, str(record.queue_id), str(record.queue_offset)]
            )
        found.append(given)
    return found


def _topic_of(group: str, topic: str, mark: str) -> str:
    return {"0": topic, "1": f"%RETRY%{group}_{topic}", "2": f"%RETRY%{group}+{topic}"}[mark]


class Popper(Talker):
    """Pops and acknowledges for the group test-group unless told otherwise."""

    @staticmethod
    def fields(topic: str, /, **fields: object) -> dict[str, str]:
        """Header fields that all POP requests have, and others."""
        ext = {"consumerGroup": "test-group", "topic": topic, "queueId": 0, **fields}
        return {name: str(value) for name, value in ext.items()}

    def _pop_fields(self, topic: str, fields: dict[str, object]) -> dict[str, str]:
        common: dict[str, object] = {
            "maxMsgNums": 32,
            "invisibleTime": 60_000,
            "pollTime": 0,
            "bornTime": 0,
            "initMode": 0,
            "order": "false",
        }
        return self.fields(topic, **(common | fields))

    async def pop(self, topic: str, /, **fields: object) -> Command:
        """One pop; it does not wait unless told to."""
        return await self.ask(RequestCode.POP_MESSAGE, self._pop_fields(topic, fields))

    def send_pop(self, topic: str, **fields: object) -> int:
        """Send a pop; the opaque of its answer."""
        return self.send_request(RequestCode.POP_MESSAGE, self._pop_fields(topic, fields))

    def send_request(self, code: int, ext: dict[str, str]) -> int:
        """Send any request; the opaque of its answer."""
        self.opaque += 1
        self.send(Command(code, opaque=self.opaque, ext_fields=ext))
        return self.opaque

    def _ack_fields(self, topic: str, info: str, fields: dict[str, object]) -> dict[str, str]:
        parts = info.split()
        group = str(fields.get("consumerGroup", "test-group"))
        mark, queue_id, offset = (parts[4], parts[6], parts[7]) if len(parts) == 8 else ("0", "0", "0")
        own = {"extraInfo": info, "queueId": queue_id, "offset": offset}
        return self.fields(_topic_of(group, topic, mark), **(own | fields))

    async def ack(self, topic: str, info: str, **fields: object) -> Command:
        """Acknowledge one message by its name."""
        return await self.ask(RequestCode.ACK_MESSAGE, self._ack_fields(topic, info, fields))

    def send_ack(self, topic: str, info: str, **fields: object) -> int:
        """Send an acknowledgement of one message; the opaque of its answer."""
        return self.send_request(RequestCode.ACK_MESSAGE, self._ack_fields(topic, info, fields))

    async def ack_all(self, answer: Command, topic: str = "T", **fields: object) -> list[int]:
        """Acknowledge all messages of a pop in one write; the answers' codes."""
        sent = [self.send_ack(topic, info, **fields) for info in extra_infos(answer, topic)]
        answers = await self.answers(len(sent))
        return [answers[opaque].code for opaque in sent]

    async def ack_bits(self, topic: str, answer: Command, bits: int, **fields: object) -> Command:
        """Acknowledge messages of queue 0 of a pop by a bit set, counted from its first offset."""
        start = int(answer.ext["startOffsetInfo"].split()[2])
        ack = {
            "b": base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode(),
            "c": "test-group",
            "it": int(answer.ext["invisibleTime"]),
            "pt": int(answer.ext["popTime"]),
            "q": 0,
            "r": answer.ext["startOffsetInfo"].split()[0],
            "rq": int(answer.ext["reviveQid"]),
            "so": start,
            "t": topic,
            **fields,
        }
        body = dumps({"acks": [ack], "brokerName": "test-a"})
        return await self.ask(RequestCode.BATCH_ACK_MESSAGE, body=body)

    async def change(self, topic: str, info: str, invisible_ms: int, **fields: object) -> Command:
        """Let one message be visible again in another time from now."""
        ext = self._ack_fields(topic, info, {"invisibleTime": invisible_ms, **fields})
        return await self.ask(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)


@asynccontextmanager
async def popping(broker: Broker | int) -> AsyncIterator[Popper]:
    """A connection to the broker (or port), cut off afterwards."""
    async with talking(broker) as talker:
        yield Popper(talker.reader, talker.writer)
