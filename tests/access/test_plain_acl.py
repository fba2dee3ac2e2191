"""Accounts of RocketMQ 4.x: patterns of addresses. What files and requests make of them is in test_plain_worlds."""

import pytest

from aerobee_access.plain_acl import address_matches, read_plain_acl


@pytest.mark.parametrize(
    ("pattern", "address", "matches"),
    [
        ("*", "10.1.2.3", True),
        (" 10.1.2.3 ", "10.1.2.3", True),
        ("10.1.2.*", "10.1.2.3", True),
        ("10.1.2.1-9", "10.1.2.3", True),
        ("10.1.2.4-9", "10.1.2.3", False),
        ("10.1.2.{1,3}", "10.1.2.3", True),
        ("10.1.2.{1, 4}", "10.1.2.3", False),
        ("10.1.1.1,10.1.2.{4,5}", "10.1.1.1", True),
        ("10.1.1.1, 10.1.2.{4,5}", "10.1.2.5", True),
        ("10.1.1.1,*", "10.1.2.3", True),
        ("", "10.1.2.3", False),
        ("fe80:0:0:0:0:0:0:*", "fe80:0:0:0:0:0:0:1", True),
    ],
)
def test_addresses(pattern: str, address: str, matches: bool) -> None:
    assert address_matches(pattern, address) is matches


@pytest.mark.parametrize(
    "pattern",
    [
        "{" * 5000,
        "10.1.2.{1,{2,{3",
        "10.1.2.1-" + "9" * 5000,
        "1-9." * 5000,
        "10.1.2.4," * 5000 + "10.1.2.{" + "5," * 5000 + "}",
    ],
    ids=["braces", "braces in braces", "a long number", "many parts", "a list with a list in braces"],
)
def test_what_no_address_looks_like_matches_none(pattern: str) -> None:
    """Such a pattern, which an administrator may send, had every later request of the account fail, or take seconds."""
    assert not address_matches(pattern, "10.1.2.3")


@pytest.mark.parametrize(
    ("word", "is_admin"), [("true", True), ("yes", True), ("On", True), ("no", False), ("off", False)]
)
def test_who_is_an_administrator(word: str, is_admin: bool) -> None:
    """As SnakeYAML reads it for RocketMQ: `yes` was none here."""
    acl = read_plain_acl(f"accounts:\n- accessKey: '0123456'\n  secretKey: secret-1\n  admin: {word}\n")
    (account,) = acl.accounts.values()
    assert account.is_admin is is_admin
