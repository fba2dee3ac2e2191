"""Users and policies of one table asked for, given and taken by another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from access.support import empty_table
from aerobee_access.admin import saved_after
from aerobee_access.copies import AccessCopy, AccessGiver, CopyHeader
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.table import AccessTable
from aerobee_access.users import Status, UserType
from aerobee_proto.errors import FormatError, RequestError
from aerobee_remoting.exchange.handlers import Response

SECRET = b"what the brokers of a set know"


async def saved() -> None:
    return


def copy_of(folder: Path, secret: bytes = SECRET) -> tuple[AccessTable, AccessCopy]:
    table = empty_table(folder / "slave")
    return table, AccessCopy(table, secret, saved_after(saved))


@pytest.fixture
def table(tmp_path: Path) -> AccessTable:
    made = empty_table(tmp_path / "master")
    made.create_user("root", "secret of root", UserType.SUPER)
    made.create_user("anna", "secret of anna")
    made.create_user("gone", "secret of gone", status=Status.DISABLE)
    entries = [
        entry_of("Topic:a*", ["Pub", "Sub"], ["10.0.0.0/8", "::1"], "Allow"),
        entry_of("*", ["All"], None, "Deny"),
    ]
    made.write_acl("anna", [(PolicyType.CUSTOM, entries), (PolicyType.DEFAULT, entries[1:])])
    return made


@pytest.fixture
def giver(table: AccessTable) -> AccessGiver:
    return AccessGiver(table, SECRET, is_on=True)


async def given(giver: AccessGiver, question: CopyHeader) -> Response:
    request: Any = SimpleNamespace(header=question)
    return await giver.give(request)


async def one_round(giver: AccessGiver, copy: AccessCopy) -> bool:
    answer = await given(giver, copy.question())
    assert isinstance(answer.ext, dict)
    return await copy.take(answer.ext, answer.body)


def rows(table: AccessTable) -> tuple[Any, ...]:
    users = [(user.name, user.secret, user.type, user.status) for user in table.users()]
    return users, [(name, dict(acl.policies)) for name, acl in table.acls()]


async def test_the_copy_has_what_the_table_has(
    table: AccessTable, giver: AccessGiver, tmp_path: Path
) -> None:
    own, copy = copy_of(tmp_path)
    own.create_user("local", "is not the master's")
    assert await one_round(giver, copy)
    assert rows(own) == rows(table)
    table.delete_user("anna")
    table.update_user("root", "another secret")
    assert await one_round(giver, copy)
    assert rows(own) == rows(table)


async def test_it_lies_on_disk_sealed_with_the_copys_own_key(giver: AccessGiver, tmp_path: Path) -> None:
    own, copy = copy_of(tmp_path)
    await one_round(giver, copy)
    written = {kind: {name: entry[name] for name in entry} for kind, entry in own.to_json().items()}
    assert "secret of anna" not in repr(written)
    read = empty_table(tmp_path / "slave")
    read.take(read.parse(written))
    assert rows(read) == rows(own)


async def test_what_is_there_already_is_not_given_again(
    table: AccessTable, giver: AccessGiver, tmp_path: Path
) -> None:
    own, copy = copy_of(tmp_path)
    await one_round(giver, copy)
    revision = own.revision
    answer = await given(giver, copy.question())
    assert answer.body == b""
    assert isinstance(answer.ext, dict)
    assert not await copy.take(answer.ext, answer.body)
    # A master that was started again counts anew: all of it is given, and nothing has changed.
    assert not await one_round(AccessGiver(table, SECRET, is_on=True), copy)
    assert own.revision == revision


async def test_what_somebody_else_has_changed_in_the_copy_does_not_stay(
    table: AccessTable, giver: AccessGiver, tmp_path: Path
) -> None:
    own, copy = copy_of(tmp_path)
    await one_round(giver, copy)
    own.delete_user("anna")
    assert await one_round(giver, copy)
    assert rows(own) == rows(table)


async def test_nothing_of_it_can_be_read_on_the_way(giver: AccessGiver, tmp_path: Path) -> None:
    answer = await given(giver, copy_of(tmp_path)[1].question())
    for told in (b"anna", b"secret", b"Topic", b"users", SECRET):
        assert told not in answer.body
        assert told.decode() not in repr(answer.ext)


@pytest.mark.parametrize(
    "question",
    [
        CopyHeader(),
        CopyHeader(nonce="00" * 32),
        CopyHeader(nonce="00" * 32, proof="no digits"),
        CopyHeader(nonce="", proof=""),
    ],
)
async def test_who_proves_nothing_gets_nothing(giver: AccessGiver, question: CopyHeader) -> None:
    with pytest.raises(RequestError, match="innerClientAuthenticationCredentials"):
        await given(giver, question)
    assert not giver.has_given


async def test_who_knows_another_secret_gets_nothing_and_takes_nothing(
    table: AccessTable, giver: AccessGiver, tmp_path: Path
) -> None:
    own, copy = copy_of(tmp_path, b"a guess")
    with pytest.raises(RequestError, match="innerClientAuthenticationCredentials"):
        await given(giver, copy.question())
    answer = await given(giver, copy_of(tmp_path)[1].question())
    assert isinstance(answer.ext, dict)
    with pytest.raises(FormatError, match="does not open"):
        await copy.take(answer.ext, answer.body)
    assert rows(own) == ([], [])


async def test_an_answer_is_one_to_its_question_alone(
    table: AccessTable, giver: AccessGiver, tmp_path: Path
) -> None:
    """A user that was deleted does not come back with an answer that somebody has kept."""
    own, copy = copy_of(tmp_path)
    old = await given(giver, copy.question())
    assert isinstance(old.ext, dict)
    copy.question()
    with pytest.raises(FormatError, match="does not open"):
        await copy.take(old.ext, old.body)
    table.delete_user("anna")
    new = await given(giver, copy.question())
    assert isinstance(new.ext, dict)
    for ext, body in (
        (new.ext | {"revision": "1-1"}, new.body),
        (new.ext, new.body[:-1] + bytes([new.body[-1] ^ 1])),
        ({}, new.body),
    ):
        with pytest.raises(FormatError):
            await copy.take(ext, body)
    with pytest.raises(FormatError, match="gives no users"):
        await copy.take(new.ext, b"")
    assert rows(own) == ([], [])


async def test_without_access_control_or_credentials_nothing_is_given(
    table: AccessTable, tmp_path: Path
) -> None:
    question = copy_of(tmp_path)[1].question()
    for giver in (AccessGiver(table, SECRET, is_on=False), AccessGiver(table, None, is_on=True)):
        with pytest.raises(RequestError):
            await given(giver, question)


async def test_what_could_not_be_written_is_written_later(giver: AccessGiver, tmp_path: Path) -> None:
    own = empty_table(tmp_path / "slave")
    failures = [OSError("disk full")]
    writes: list[int] = []

    @asynccontextmanager
    async def changing() -> AsyncIterator[None]:
        yield
        await asyncio.sleep(0)
        if failures:
            raise failures.pop()
        writes.append(own.revision)

    copy = AccessCopy(own, SECRET, changing)
    with pytest.raises(OSError, match="disk full"):
        await one_round(giver, copy)
    assert not await one_round(giver, copy)
    assert writes == [own.revision]
    assert not await one_round(giver, copy)
    assert len(writes) == 1
