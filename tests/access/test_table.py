"""Users and policies, and their file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from access.support import empty_table
from aerobee_access.policies import PolicyType, entry_of, resource_of
from aerobee_access.sealing import KeyFileError
from aerobee_access.table import AccessTable
from aerobee_access.users import Status, UserType
from aerobee_proto.errors import FormatError, RequestError
from aerobee_proto.written_json import read_written


@pytest.fixture
def table(tmp_path: Path) -> AccessTable:
    made = empty_table(tmp_path)
    made.create_user("root", "root secret", UserType.SUPER)
    made.create_user("anna", "anna's secret")
    made.create_user("bert", "bert's secret", status=Status.DISABLE)
    reads = entry_of("Topic:t*", ["Sub", "Get"], ["10.0.0.0/8", "::1"], "Allow")
    made.write_acl(
        "anna", [(PolicyType.CUSTOM, [reads]), (PolicyType.DEFAULT, [entry_of("*", ["All"], None, "Deny")])]
    )
    return made


def written(table: AccessTable) -> dict[str, dict[str, Any]]:
    """The content of the file, whole."""
    return {name: dict(members) for name, members in table.to_json().items()}


def test_what_is_written_is_read_again(table: AccessTable, tmp_path: Path) -> None:
    text = json.dumps(written(table)).encode()
    other = empty_table(tmp_path)
    content = read_written(text)
    assert isinstance(content, dict)
    other.take(other.parse(content))
    assert other.users() == table.users()
    assert other.acls() == table.acls()
    assert b"secret" not in text


def test_nothing_shows_a_secret(table: AccessTable) -> None:
    assert "secret" not in repr(table.users())


def test_the_file_is_of_no_use_without_the_key(table: AccessTable, tmp_path: Path) -> None:
    with pytest.raises(KeyFileError):
        empty_table(tmp_path / "elsewhere").parse(table.to_json())


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"users": [], "acls": {}},
        {"users": {"a": {"password": "x"}}, "acls": {}},
        {"users": {}, "acls": {"a": 1}},
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path: Path, content: dict[str, object]) -> None:
    with pytest.raises(FormatError):
        empty_table(tmp_path).parse(content)


@pytest.mark.parametrize(("field", "value"), [("decision", 3), ("actions", [99]), ("resourceType", 9)])
def test_numbers_that_mean_nothing_are_refused(table: AccessTable, field: str, value: object) -> None:
    content = written(table)
    content["acls"]["anna"][0]["entries"][0][field] = value
    with pytest.raises(FormatError):
        table.parse(content)


def test_every_change_moves_the_revision_and_a_refused_one_does_not(table: AccessTable) -> None:
    seen = table.revision
    table.update_user("anna", status=Status.DISABLE)
    assert table.revision > seen
    seen = table.revision
    refusals: list[Callable[[], None]] = [
        lambda: table.create_user("anna", "x"),
        lambda: table.create_user("new", " "),
        lambda: table.create_user("n" * 256, "x"),
        lambda: table.create_user("new", "x" * 2000),
        lambda: table.update_user("nobody"),
        lambda: table.delete_user("root"),
        lambda: table.write_acl("nobody", []),
        lambda: table.delete_acl("bert", PolicyType.CUSTOM, None),
    ]
    for refused in refusals:
        with pytest.raises(RequestError):
            refused()
    assert table.revision == seen


def test_policies_go_with_their_user(table: AccessTable) -> None:
    table.delete_user("anna")
    table.create_user("anna", "another")
    assert table.acl("anna") is None


def test_the_last_entry_takes_its_policy_with_it(table: AccessTable) -> None:
    table.delete_acl("anna", PolicyType.CUSTOM, resource_of("Topic:t*"))
    acl = table.acl("anna")
    assert acl is not None
    assert list(acl.policies) == [PolicyType.DEFAULT]
    table.delete_acl("anna", PolicyType.DEFAULT, resource_of("*"))
    assert table.acl("anna") is None


def test_the_entries_of_one_user_and_of_all_are_bounded(tmp_path: Path) -> None:
    table = empty_table(tmp_path)
    entries = [entry_of(f"Topic:{number}", ["Pub"], None, "Allow") for number in range(2001)]
    table.create_user("u0", "x")
    with pytest.raises(RequestError, match="at most 2000"):
        table.write_acl("u0", [(PolicyType.CUSTOM, entries)])
    for number in range(10):
        table.create_user(f"u{number + 1}", "x")
        table.write_acl(f"u{number + 1}", [(PolicyType.CUSTOM, entries[:2000])])
    with pytest.raises(RequestError, match="20000 are kept in all"):
        table.write_acl("u0", [(PolicyType.CUSTOM, entries[:1])])
