"""Settings: the four layers, and what an operator is told when something is wrong."""

from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import Field, SecretStr, model_validator
from structlog.testing import capture_logs

from aerobee_service.settings.settings import (
    SETTINGS_FILE_BYTES_MAX,
    SUGGESTIONS_MAX,
    SettingsError,
    SettingsModel,
    apply_changes,
    dump_settings,
    load_settings,
    read_properties,
)
from turns import TURN_MAX, turn_of


class Flush(StrEnum):
    SYNC = "SYNC_FLUSH"
    ASYNC = "ASYNC_FLUSH"


class Sample(SettingsModel):
    UNSUPPORTED: ClassVar[Mapping[str, str]] = {"transientStorePoolEnable": "there is no pool here"}

    listen_port: int = Field(10911, ge=0, le=65535)
    broker_ip1: str | None = Field(None, alias="brokerIP1")
    namesrv_addr: str = Field("", json_schema_extra={"env": ["NAMESRV_ADDR"]})
    flush_disk_type: Flush = Flush.SYNC
    auto_create: bool = True
    key_password: SecretStr = SecretStr("")
    low: int = 1
    high: int = 10

    @model_validator(mode="after")
    def check_order(self) -> "Sample":
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


def load(
    file: Path | None = None,
    environ: Mapping[str, str] | None = None,
    overrides: Mapping[str, str] | None = None,
) -> Sample:
    return load_settings(
        Sample, file=file, environ_prefix="AEROBEE_TEST_", overrides=overrides or {}, environ=environ or {}
    )


def problems_of(**layers: Mapping[str, str]) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(**layers)  # type: ignore[arg-type]
    return [str(problem) for problem in caught.value.problems]


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(
        "# a broker\n"
        "listenPort = 1\n"
        "brokerIP1=10.0.0.7\n"
        "\n"
        "namesrvAddr=a:9876;\\\n"
        "  b:9876\n"
        "flushDiskType=ASYNC_FLUSH   \n"
    )
    return path


def test_nothing_given_means_the_defaults() -> None:
    settings = load()
    assert settings.listen_port == 10911
    assert settings.broker_ip1 is None
    assert settings.auto_create is True


def test_a_properties_file_is_read_as_java_reads_it(conf: Path) -> None:
    settings = load(file=conf)
    assert settings.listen_port == 1
    assert settings.broker_ip1 == "10.0.0.7"
    assert settings.namesrv_addr == "a:9876;b:9876"
    assert settings.flush_disk_type is Flush.ASYNC


def test_a_toml_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "broker.toml"
    path.write_text('listenPort = 2\nauto_create = false\nbrokerIP1 = "10.0.0.8"\n')
    settings = load(file=path)
    assert (settings.listen_port, settings.auto_create, settings.broker_ip1) == (2, False, "10.0.0.8")


def test_later_layers_win(conf: Path) -> None:
    environ = {"AEROBEE_TEST_LISTEN_PORT": "2", "AEROBEE_TEST_BROKER_IP1": "10.0.0.9"}
    settings = load(file=conf, environ=environ, overrides={"listenPort": "3"})
    assert settings.listen_port == 3
    assert settings.broker_ip1 == "10.0.0.9"
    assert settings.flush_disk_type is Flush.ASYNC


def test_an_empty_variable_counts_as_absent(conf: Path) -> None:
    assert load(file=conf, environ={"AEROBEE_TEST_LISTEN_PORT": ""}).listen_port == 1


def test_a_field_can_be_read_from_a_well_known_variable() -> None:
    assert load(environ={"NAMESRV_ADDR": "n:1"}).namesrv_addr == "n:1"


# What Kubernetes sets in every container for a service named aerobee-test.
INJECTED = {
    "AEROBEE_TEST_PORT": "tcp://10.0.0.1:10911",
    "AEROBEE_TEST_SERVICE_HOST": "10.0.0.1",
    "AEROBEE_TEST_SERVICE_PORT": "10911",
    "AEROBEE_TEST_SERVICE_PORT_METRICS": "5557",
    "AEROBEE_TEST_PORT_10911_TCP": "tcp://10.0.0.1:10911",
    "AEROBEE_TEST_PORT_10911_TCP_PROTO": "tcp",
    "AEROBEE_TEST_PORT_10911_TCP_PORT": "10911",
    "AEROBEE_TEST_PORT_10911_TCP_ADDR": "10.0.0.1",
}


def test_what_an_orchestrator_injects_under_our_prefix_is_a_warning() -> None:
    with capture_logs() as events:
        load(environ={**INJECTED, "AEROBEE_TEST_FOO": "x", "OTHER": "x"})
    assert events == [
        {"event": "settings.variable_ignored", "log_level": "warning", "variable": name}
        for name in [*INJECTED, "AEROBEE_TEST_FOO"]
    ]


@pytest.mark.parametrize(
    "name",
    [f"AEROBEE_TEST_{words}" for words in ("LISTENPORT", "listenPort", "listen_port", "Listen_PORT")],
)
def test_a_variable_may_be_cut_into_words_in_any_way(name: str) -> None:
    """LISTENPORT was a warning, and the program started on the port that nobody meant."""
    assert load(environ={name: "3"}).listen_port == 3


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("AEROBEE_TEST_LISTEN_PORTS", "AEROBEE_TEST_LISTEN_PORT"),
        ("AEROBEE_TEST_LISTNPORT", "AEROBEE_TEST_LISTEN_PORT"),
        ("AEROBEE_TEST_FLUSH_DISK_TYP", "AEROBEE_TEST_FLUSH_DISK_TYPE"),
    ],
)
def test_a_variable_that_is_nearly_one_of_ours_is_refused(name: str, meant: str) -> None:
    assert problems_of(environ={name: "3"}) == [
        f"{name} = 3 (environment variable): unknown variable; did you mean {meant}?"
    ]


def test_nothing_is_logged_before_the_program_has_set_up_its_logs() -> None:
    """Warnings about settings were text for people among JSON lines."""
    with capture_logs() as events:
        seen: list[int] = []
        load_settings(
            Sample,
            file=None,
            environ_prefix="AEROBEE_TEST_",
            overrides={"transientStorePoolEnable": "true"},
            environ={"AEROBEE_TEST_FOO": "x"},
            ready=lambda settings: seen.append(settings.listen_port) or seen.append(len(events)),  # type: ignore[func-returns-value]
        )
    assert seen == [10911, 0]
    assert len(events) == 2


def test_an_unknown_key_is_an_error_that_names_the_nearest_and_the_line(tmp_path: Path) -> None:
    path = tmp_path / "broker.conf"
    path.write_text("listenPort=1\nbrokerIp1=10.0.0.7\n")
    with pytest.raises(SettingsError) as caught:
        load(file=path)
    assert str(caught.value) == (
        f"1 setting is wrong:\n  brokerIp1 = 10.0.0.7 ({path} line 2): unknown key; did you mean brokerIP1?"
    )


def test_an_unknown_key_without_a_neighbour_says_so() -> None:
    assert problems_of(overrides={"xyzzy": "1"}) == [
        "xyzzy = 1 (--set): unknown key; nothing here has a name like it"
    ]


def test_all_problems_are_reported_at_once() -> None:
    wrong = {"listenPort": "70000", "flushDiskType": "NEVER", "autoCreate": "maybe", "lissenPort": "1"}
    found = problems_of(overrides=wrong)
    assert found[0] == "lissenPort = 1 (--set): unknown key; did you mean listenPort?"
    assert found[1] == "listenPort = 70000 (--set): must be an integer from 0 to 65535"
    assert found[2].endswith(": must be one of SYNC_FLUSH, ASYNC_FLUSH")
    assert found[3].endswith(": must be true or false")
    assert len(found) == 4


def test_a_broken_value_that_is_overridden_does_no_harm() -> None:
    assert load(environ={"AEROBEE_TEST_LISTEN_PORT": "x"}, overrides={"listenPort": "5"}).listen_port == 5


def test_a_rule_over_several_keys_is_told_in_its_own_words() -> None:
    assert problems_of(overrides={"low": "11"}) == ["settings (taken together): low must not be above high"]


def test_a_known_but_unsupported_key_is_a_warning_with_its_reason() -> None:
    with capture_logs() as events:
        load(overrides={"transientStorePoolEnable": "true"})
    assert events == [
        {
            "event": "settings.key_ignored",
            "log_level": "warning",
            "key": "transientStorePoolEnable",
            "origin": "--set",
            "reason": "there is no pool here",
        }
    ]


def test_secrets_are_never_shown() -> None:
    found = problems_of(overrides={"keyPasword": "hunter2", "keyPassword": "hunter3"})
    assert "hunter" not in "".join(problems_of(overrides={"accessTokens": "hunter2"}))
    assert "hunter3" not in "".join(found)
    assert dump_settings(load(overrides={"keyPassword": "hunter2"}))["keyPassword"] == "***"


def test_a_long_value_is_shortened() -> None:
    (found,) = problems_of(overrides={"listenPort": "9" * 500})
    assert len(found) < 250


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.conf", b"listenPort=\xff", "is not UTF-8 at byte 11"),
        ("a.toml", b"listenPort = = 1", "is not valid TOML"),
        ("a.toml", b"listenPort = " + b"9" * 5000, "is not valid TOML"),
        ("a.toml", b"a = " + b"[" * 3000, "is not valid TOML"),
        ("a.conf", b"brokerIP1=\\u12", "line 1: "),
        ("a.conf", b"#" * (SETTINGS_FILE_BYTES_MAX + 1), "is larger than"),
    ],
)
def test_a_broken_file_is_named_with_its_fault(
    tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=reason) as caught:
        load(file=path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read: No such file"):
        load(file=tmp_path / "absent.conf")


def test_changes_give_a_new_checked_instance() -> None:
    before = load(overrides={"listenPort": "5"})
    after = apply_changes(before, {"autoCreate": "false"}, origin="admin request")
    assert (before.auto_create, after.auto_create, after.listen_port) == (True, False, 5)


def test_wrong_changes_are_refused_and_name_their_origin() -> None:
    before = load()
    with pytest.raises(SettingsError, match=r"listenPort = x \(admin request\)"):
        apply_changes(before, {"listenPort": "x"}, origin="admin request")
    with pytest.raises(SettingsError, match="did you mean autoCreate"):
        apply_changes(before, {"autoCreat": "x"}, origin="admin request")


def test_dump_is_sorted_and_speaks_rocketmq() -> None:
    dump = dump_settings(load(overrides={"autoCreate": "false"}))
    assert list(dump) == sorted(dump)
    assert dump["autoCreate"] == "false"
    assert dump["brokerIP1"] == ""
    assert dump["flushDiskType"] == "SYNC_FLUSH"


def test_only_the_first_unknown_keys_are_compared_with_those_that_are_known() -> None:
    """30,000 keys of one request took 14 s, and each second of it the nameserver answered nobody."""
    changes = {f"lissenPort{number}": "1" for number in range(500)} | {"x" * 50_000: "1"}
    with pytest.raises(SettingsError) as refused:
        apply_changes(load(), changes, origin="request")
    reasons = [problem.reason for problem in refused.value.problems]
    assert sum("did you mean" in reason for reason in reasons) == SUGGESTIONS_MAX
    assert reasons[-1] == "unknown key"
    assert len(reasons) == 501


def test_a_text_of_very_many_settings_is_refused_before_it_is_read() -> None:
    assert len(read_properties("a=1\n" * 10 + "b=2\n" * 490)) == 2
    with pytest.raises(ValueError, match="501 lines; at most 500"):
        read_properties("a=1\n" * 501)


def test_no_change_of_settings_takes_longer_than_a_turn_may() -> None:
    bodies = [
        "".join(f"lissenPort{number}=1\n" for number in range(500)),
        "listenPort=x\n",
        "a=\\u0041" * 8_000,
    ]

    def attempt(text: str) -> None:
        with suppress(SettingsError):
            apply_changes(load(), read_properties(text), origin="request")

    for text in bodies:
        assert turn_of(lambda text=text: attempt(text)) < TURN_MAX  # type: ignore[misc]
