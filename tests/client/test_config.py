from collections.abc import Iterable

import pytest

from aerobee import Client, ClientConfig, InvalidMessage
from aerobee.config import parse_addrs


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("a:1", ("a:1",)),
        ("a:1;b:2", ("a:1", "b:2")),
        ("a:1, b:2;;", ("a:1", "b:2")),
        (["a:1", "b:2;c:3"], ("a:1", "b:2", "c:3")),
        ("a", ("a:9876",)),
        ("[::1]:5", ("[::1]:5",)),
        ("[::1]", ("[::1]:9876",)),
        ("http://a:1/", ("a:1",)),
        ("a:1;a:1", ("a:1",)),
    ],
)
def test_addresses_in_every_form(written: str | Iterable[str], expected: tuple[str, ...]) -> None:
    assert parse_addrs(written) == expected


@pytest.mark.parametrize("written", ["", ";", [], "a:", ":1", "a:x", "a:0", "a:65536"])
def test_what_is_no_address_is_refused(written: str | Iterable[str]) -> None:
    with pytest.raises(InvalidMessage, match="address"):
        parse_addrs(written)


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, ("127.0.0.1:9876",)),
        ({"NAMESRV_ADDR": "a:1;b:2"}, ("a:1", "b:2")),
        ({"NAMESRV_ADDR": "a:1", "AEROBEE_NAMESERVERS": "c:3"}, ("c:3",)),
    ],
)
def test_the_environment_names_the_nameservers(environ: dict[str, str], expected: tuple[str, ...]) -> None:
    assert Client.from_env(environ).config.nameservers == expected


def test_tls_by_environment() -> None:
    assert ClientConfig.from_env({"AEROBEE_TLS": "true"}).tls is True
    assert ClientConfig.from_env({"AEROBEE_TLS": "0"}).tls is None


def test_arguments_win_over_the_config() -> None:
    config = ClientConfig(nameservers=("a:1",), request_timeout_s=9.0)
    client = Client("b:2", config=config, tls=True)
    assert (client.config.nameservers, client.config.request_timeout_s) == (("b:2",), 9.0)
    assert client.config.tls is True
