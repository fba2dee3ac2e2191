"""Transactions and request-reply as they were recorded between official clients and an official broker, said to ours.

The recorded clients name places in the official log; they are told ours instead, as they would have been.
"""

from collections.abc import Iterable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from aerobee_broker.transactions.transaction_checks import TransactionChecks
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import FLAG_RESPONSE, Command
from aerobee_proto.properties import decode_properties
from aerobee_proto.records import StoredRecord, decode_record
from broker.support import Clock
from system.running import Talker, running_broker, talking
from system.test_golden_traffic import CODECS, SETTINGS, Line, answer_of, session

TRANSACTIONS_MS = 1_795_253_039_500  # when the recorded messages were born
# Properties that depend on time, on this store, or that only one of the two brokers notes.
OWN_PROPERTIES = {"PUSH_REPLY_TIME", "TRAN_PREPARED_QUEUE_OFFSET", "WAIT"}


class Place(NamedTuple):
    """Of a half message: in its queue and in the log, as text."""

    queue_offset: str
    physical_offset: str


class TransactionReplay:
    """Plays the recorded producer."""

    def __init__(self, client: Talker, checks: TransactionChecks, clock: Clock) -> None:
        self._client, self._checks, self._clock = client, checks, clock
        self._answers: dict[int, Command] = {}
        self._places: dict[Place, Place] = {}  # official to ours
        self._questions: dict[str, Command] = {}  # ours, by message
        self.asked: list[str] = []

    async def play(self, line: Line) -> None:
        command = line.command
        if line.from_client and command.code == RequestCode.SEND_MESSAGE_V2:
            self._client.writer.write(line.frame)
            self._answers[command.opaque] = await self._client.answer_to(command.opaque)
        elif line.from_client and command.code == RequestCode.HEART_BEAT:
            self._client.writer.write(line.frame)
        elif line.from_client and command.code == RequestCode.END_TRANSACTION:
            await self._end(command)
        elif command.is_response and command.opaque in self._answers:
            self._compare_answer(command, self._answers.pop(command.opaque))
        elif command.code == RequestCode.CHECK_TRANSACTION_STATE:
            await self._check(command)

    async def _end(self, command: Command) -> None:
        theirs = Place(command.ext["tranStateTableOffset"], command.ext["commitLogOffset"])
        ours = self._places.get(theirs)
        if ours is None:
            return  # an answer to a question that only the official broker asked
        fields = {"tranStateTableOffset": ours.queue_offset, "commitLogOffset": ours.physical_offset}
        self._client.send(
            Command(command.code, opaque=command.opaque, flag=command.flag, ext_fields=command.ext | fields)
        )
        await self._client.ask(RequestCode.GET_MAX_OFFSET, {"topic": "GdTran", "queueId": "0"})  # it is done

    def _compare_answer(self, theirs: Command, ours: Command) -> None:
        assert answer_of(ours) == answer_of(theirs)
        for name in ("queueId", "queueOffset", "transactionId"):
            assert ours.ext[name] == theirs.ext[name]
        self._learn(place_of(theirs.ext), place_of(ours.ext))

    def _learn(self, theirs: Place, ours: Place) -> None:
        self._places[theirs] = ours

    async def _check(self, theirs: Command) -> None:
        if not self._questions:
            self._clock.now_ms += 30_000
            assert (await self._checks.run_round()).asked == 2
            while len(self._questions) < 2:
                command = await self._client.receive()
                if not command.is_response:
                    self._questions[command.ext["msgId"]] = command
        ours = self._questions.get(theirs.ext["msgId"])  # the official broker asks in any order,
        if ours is None:
            return  # and about transactions whose end it has not noted yet
        assert (ours.code, ours.is_oneway, ours.ext.keys()) == (theirs.code, True, theirs.ext.keys())
        for name in ("bname", "topic", "transactionId"):
            assert ours.ext[name] == theirs.ext[name]
        assert comparable(decode_record(ours.body)) == comparable(decode_record(theirs.body))
        self._learn(
            Place(theirs.ext["tranStateTableOffset"], theirs.ext["commitLogOffset"]),
            Place(ours.ext["tranStateTableOffset"], ours.ext["commitLogOffset"]),
        )
        self.asked.append(ours.ext["msgId"])


def place_of(answer: dict[str, str]) -> Place:
    """Where a message lies by the answer to its send."""
    return Place(answer["queueOffset"], str(int(answer["msgId"][-16:], 16)))


def comparable(record: StoredRecord) -> tuple[object, ...]:
    """What both brokers must say of a message."""
    return (
        *(record.topic, record.queue_id, record.body, record.flag, record.sys_flag),
        *(record.born_timestamp, record.reconsume_times, record.prepared_transaction_offset),
        without_own(record.property_map),
    )


def without_own(mapping: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in mapping.items() if name not in OWN_PROPERTIES}


@pytest.mark.parametrize("codec", CODECS)
async def test_a_recorded_transaction_producer_is_served_as_there(tmp_path: Path, codec: str) -> None:
    clock = Clock(TRANSACTIONS_MS)
    async with running_broker(tmp_path, clock=clock, **SETTINGS) as broker, talking(broker) as client:
        replay = TransactionReplay(client, broker.parts.checks, clock)
        for line in session(codec, "transaction"):
            await replay.play(line)
        assert len(replay.asked) == 2
        found = [await client.records("GdTran", queueId=queue) for queue in range(2)]
        keys = [[record.property_map["KEYS"] for record in records] for records in found]
        assert keys == [["tk commit", "tk unknown then commit"], []]
        assert broker.parts.transactions.open_count == 0


class Exchange(NamedTuple):
    """A recorded reply: what the replier sent and was answered, what the producer got."""

    reply: Line
    push: Command
    answer: Command


def exchanges(lines: Iterable[Line]) -> list[Exchange]:
    """The replies of a recording in their order."""
    replies, pushes, answers = [], [], {}
    for line in lines:
        command = line.command
        if line.from_client and command.code == RequestCode.SEND_REPLY_MESSAGE_V2:
            replies.append(line)
        elif command.code == RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
            pushes.append(command)
        elif not line.from_client and command.is_response:
            answers[line.connection, command.opaque] = command
    return [
        Exchange(reply, push, answers[reply.connection, reply.command.opaque])
        for reply, push in zip(replies, pushes, strict=True)
    ]


@pytest.mark.parametrize("codec", CODECS)
async def test_recorded_replies_are_pushed_and_answered_as_there(tmp_path: Path, codec: str) -> None:
    lines = list(session(codec, "request-reply"))
    found = exchanges(lines)
    assert len(found) == 2
    async with AsyncExitStack() as stack:
        broker = await stack.enter_async_context(running_broker(tmp_path, **SETTINGS))
        producer, replier = [await stack.enter_async_context(talking(broker)) for _ in range(2)]
        beats = [line for line in lines if line.from_client and line.command.code == RequestCode.HEART_BEAT]
        for line in beats:
            producer.writer.write(line.frame)
            await producer.answer_to(line.command.opaque)
        for exchange in found:
            replier.writer.write(exchange.reply.frame)
            push = await producer.receive()
            while push.code != RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT:
                push = await producer.receive()
            producer.send(Command(0, opaque=push.opaque, flag=FLAG_RESPONSE))
            compare_push(push, exchange.push)
            ours = await replier.answer_to(exchange.reply.command.opaque)
            assert answer_of(ours) == answer_of(exchange.answer)
            for name in ("queueId", "queueOffset"):
                assert ours.ext[name] == exchange.answer.ext[name]


def compare_push(ours: Command, theirs: Command) -> None:
    assert (ours.body, ours.ext.keys(), ours.is_oneway) == (theirs.body, theirs.ext.keys(), False)
    for name in theirs.ext.keys() - {"bornHost", "storeHost", "storeTimestamp", "properties"}:
        assert ours.ext[name] == theirs.ext[name]
    own, official = [decode_properties(command.ext["properties"]) for command in (ours, theirs)]
    assert own.keys() == official.keys()
    assert without_own(own) == without_own(official)
