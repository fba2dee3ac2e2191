"""Lists of addresses and networks as operators write them."""

import pytest

from aerobee_remoting.peers.networks import NETWORKS_MAX, NOWHERE, Networks


def test_addresses_and_networks_of_both_kinds() -> None:
    named = Networks(" 10.0.0.7, 10.1.0.0/16,,fd00::/8 ,::1")
    for address in (
        "10.0.0.7",
        "10.1.2.3",
        "fd12::9",
        "::1",
        "fd12::9%eth0",
        "::ffff:10.0.0.7",
        "::ffff:10.1.0.1",
    ):
        assert address in named, address
    for address in (
        "10.0.0.8",
        "10.2.0.1",
        "fe80::1",
        "::2",
        "::ffff:10.0.0.8",
        "",
        "localhost",
        "10.0.0.7:80",
    ):
        assert address not in named, address
    assert named


def test_nobody_is_in_an_empty_list() -> None:
    assert not NOWHERE
    assert "127.0.0.1" not in NOWHERE
    assert not Networks(" , ")


@pytest.mark.parametrize(
    "text", ["proxy.example", "10.0.0.0/33", "10.0.0.7/8", "10.0.0.7 10.0.0.8", "*", "10.0.0"]
)
def test_what_is_neither_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="separated by commas"):
        Networks(f"10.0.0.1,{text}")


def test_a_list_has_an_end() -> None:
    with pytest.raises(ValueError, match="at most"):
        Networks(",".join(["10.0.0.1"] * (NETWORKS_MAX + 1)))
