import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from aerobee import Client, ClientConfig, ConsumerConfig, FetchConfig, InvalidMessage, ProducerConfig
from aerobee.terms.config import parse_addrs
from client.events import captured_events


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


def test_without_an_address_the_environment_is_named() -> None:
    """A program without its variable looked at its own machine in silence."""
    with captured_events() as events:
        assert ClientConfig.from_env({}).nameservers == ("127.0.0.1:9876",)
    (logged,) = events
    assert (logged["event"], logged["log_level"]) == ("client.nameservers_not_set", "warning")
    assert (logged["variable"], logged["used"]) == ("AEROBEE_NAMESERVERS", "127.0.0.1:9876")
    with captured_events() as events:
        ClientConfig.from_env({"NAMESRV_ADDR": "a:1"})
    assert events == []


def test_addresses_of_a_config_may_be_one_text() -> None:
    given: Any = "a:1;b:2"
    assert ClientConfig(nameservers=given).nameservers == ("a:1", "b:2")


CONFIGS = (ClientConfig, ProducerConfig, FetchConfig, ConsumerConfig)
GUIDE = Path(__file__).resolve().parents[3] / "docs" / "client.md"


def logged_settings(config: type) -> dict[str, str]:
    """What the docstring says of each setting, or of several in one entry: "a, b" -> text."""
    logged: dict[str, str] = {}
    name = ""
    for line in (config.__doc__ or "").split("\n\n", 1)[1].splitlines():
        entry = re.match(r"    (\w+(?:, \w+)*) +(\S.*)$", line)
        known = vars(config)["__dataclass_fields__"]
        if entry and all(one in known for one in entry[1].split(", ")):
            name = entry[1]
            logged[name] = entry[2].strip()
        elif line.strip():
            logged[name] += " " + line.strip()
    return logged


def shown_default(config: type, names: str) -> str:
    return ", ".join(_shown(name, getattr(config(), name)) for name in names.split(", "))


def _shown(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return ";".join(value)
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, int) and re.search("bytes|size|over", name):
        return f"{value >> 20} MiB" if value >= 1 << 20 else f"{value >> 10} KiB"
    return str(value)


@pytest.mark.parametrize("config", CONFIGS)
def test_the_docstring_has_every_setting_with_its_default(config: type) -> None:
    logged = logged_settings(config)
    assert [name for names in logged for name in names.split(", ")] == list(
        vars(config)["__dataclass_fields__"]
    )
    for names, text in logged.items():
        assert text.endswith(f" [{shown_default(config, names)}]"), f"{names}: end with its default"


@pytest.mark.parametrize("config", CONFIGS)
def test_the_guide_has_a_table_of_every_setting(config: type) -> None:
    guide = GUIDE.read_text(encoding="utf-8").splitlines()
    for names, text in logged_settings(config).items():
        default = shown_default(config, names)
        shown = ", ".join(f"`{name}`" for name in names.split(", "))
        row = f"| {shown} | {default} | {text.removesuffix(f' [{default}]').replace('|', chr(92) + '|')} |"
        assert row in guide, f"docs/client.md needs this line:\n{row}"
