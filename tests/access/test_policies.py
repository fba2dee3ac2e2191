"""Policies as administrators write them."""

import pytest

from aerobee_access.policies import Action, Kind, Pattern, Resource, entry_of, resource_of
from aerobee_proto.errors import RequestError

RESOURCES = {
    "*": Resource(Kind.ANY, "", Pattern.ANY),
    "Topic:*": Resource(Kind.TOPIC, "", Pattern.ANY),
    "topic:a": Resource(Kind.TOPIC, "a", Pattern.LITERAL),
    "GROUP:a*": Resource(Kind.GROUP, "a", Pattern.PREFIXED),
    "Topic:a*b*": Resource(Kind.TOPIC, "a", Pattern.PREFIXED),
    "Topic:a*b": Resource(Kind.TOPIC, "a*b", Pattern.LITERAL),
    "Topic:": Resource(Kind.TOPIC, "", Pattern.LITERAL),
    "Topic": Resource(Kind.TOPIC, "", Pattern.LITERAL),
    "Topic:a:b": Resource(Kind.TOPIC, "a:b", Pattern.LITERAL),
}


@pytest.mark.parametrize(("text", "resource"), RESOURCES.items())
def test_a_resource_is_read(text: str, resource: Resource) -> None:
    assert resource_of(text) == resource


@pytest.mark.parametrize("text", [None, "", " ", "Queue:x", "x", "User:a", "Topic:" + "x" * 2000])
def test_what_is_no_resource(text: str | None) -> None:
    assert resource_of(text) is None


def test_actions_are_read_in_any_case_and_unknown_ones_dropped() -> None:
    assert entry_of("*", ["PUB", "fly", "sub", "Pub"], None, "ALLOW").actions == (Action.PUB, Action.SUB)


@pytest.mark.parametrize(
    ("address", "written", "fits"),
    [
        ("10.1.2.3", [], True),
        ("10.1.2.3", ["10.1.2.3"], True),
        ("10.1.2.3", ["10.0.0.0/8"], True),
        ("10.1.2.3", ["10.1.2.99/24"], True),
        ("10.1.3.3", ["10.1.2.99/24", "192.168.0.0/16"], False),
        ("::ffff:10.1.2.3", ["10.0.0.0/8"], True),
        ("fe80::1%eth0", ["fe80::/10"], True),
        ("2001:db8::1", ["10.0.0.0/8"], False),
        ("10.1.2.3", ["::/0"], False),
        ("unknown", ["0.0.0.0/0"], False),
    ],
)
def test_addresses(address: str, written: list[str], fits: bool) -> None:
    assert entry_of("*", ["All"], written, "Allow").is_from(address) is fits


@pytest.mark.parametrize("address", ["", " ", "localhost", "10.0.0", "10.0.0.0/33", "*", "localhost/8"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(RequestError, match="The source ip is"):
        entry_of("*", ["All"], [address], "Allow")
