"""A client that stays is answered soon while others come with work, on real connections of one host."""

import asyncio
from pathlib import Path

import pytest

import aerobee_service.turns.turns as turns
from aerobee_proto.codes import RequestCode
from attacks import ATTACKS, send
from system.running import running_broker

pytestmark = pytest.mark.spread

CONNECTIONS = 40
REQUESTS = 200  # of each
SENDS = 12


async def answered(reader: asyncio.StreamReader) -> None:
    async with asyncio.timeout(60):
        await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


async def test_members_that_come_together_do_not_come_before_a_client_that_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each connection that came had a slice of every turn, and its heartbeats did not even wait for that: whoever
    sent one message waited until all that had come before it had brought their members, for seconds."""
    members = next(one for one in ATTACKS if one.name == "many members that come and go together")
    async with running_broker(tmp_path / "store", mapped_file_size_commit_log=64 << 20) as broker:
        monkeypatch.setattr(turns, "NEW_S", 0.0)
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.port)
        for number in range(3):  # it is there for long, as the broker sees it
            writer.write(send(number))
            await answered(reader)
        monkeypatch.setattr(turns, "NEW_S", 3600.0)
        entry = broker.handlers.by_code[RequestCode.HEART_BEAT]
        writers = []
        for _ in range(CONNECTIONS):
            writers.append((await asyncio.open_connection("127.0.0.1", broker.port))[1])
        served = []
        try:
            for number, theirs in enumerate(writers):
                theirs.write(members.make(number))  # all of it is there before the broker reads
            for number in range(SENDS):
                before = entry.requests
                writer.write(send(number))
                await answered(reader)
                served.append(entry.requests - before)
            assert 0 < max(served) < CONNECTIONS * REQUESTS / 10  # 100 to 200; it was half of all
        finally:
            for one in (writer, *writers):
                one.transport.abort()
