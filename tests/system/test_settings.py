"""Every setting of both daemons, one by one: its default, paths that begin with ~, wrong values."""

import pwd
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_broker.main import load_config as load_broker
from aerobee_broker.settings.config import BrokerConfig
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.config import load_config as load_nameserver
from aerobee_service.settings.settings import SettingsError, SettingsModel

LOAD: dict[type[SettingsModel], Callable[[Path | None, dict[str, str]], SettingsModel]] = {
    BrokerConfig: load_broker,
    NameserverConfig: load_nameserver,
}
FIELDS = [
    pytest.param(model, name, id=f"{model.__name__}-{name}") for model in LOAD for name in model.model_fields
]


def is_path(model: type[SettingsModel], name: str) -> bool:
    words = name.split("_")
    return any(word in words for word in ("path", "dir", "folder"))


PATHS = [
    pytest.param(model, name, id=f"{model.__name__}-{name}")
    for model in LOAD
    for name in model.model_fields
    if is_path(model, name)
]


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose user has no account, as in a container with a number for a user."""

    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(f"getpwuid(): uid not found: {number}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_a_default_is_what_the_same_value_would_be_if_it_were_written(
    model: type[SettingsModel], name: str
) -> None:
    """The broker's store lay in a folder named `~`: the default was never looked at by its own check."""
    default = model.model_fields[name].get_default(call_default_factory=True, validated_data={})
    written: Any = model.model_validate({model.model_fields[name].alias: default})
    assert getattr(model(), name) == getattr(written, name)


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_no_value_without_settings_begins_with_a_tilde(model: type[SettingsModel], name: str) -> None:
    assert not str(getattr(model(), name)).startswith("~")


def test_the_paths_are_found_by_their_names() -> None:
    assert len(PATHS) == 27


@pytest.mark.parametrize(("model", "name"), PATHS)
def test_a_path_may_begin_with_the_home_folder(
    model: type[SettingsModel], name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    key = str(model.model_fields[name].alias)
    assert str(getattr(LOAD[model](None, {key: "~/one"}), name)) == f"{tmp_path}/one"


@pytest.mark.parametrize(("model", "name"), PATHS)
def test_a_path_with_a_variable_is_refused_and_not_taken_by_its_letters(
    model: type[SettingsModel], name: str
) -> None:
    key = str(model.model_fields[name].alias)
    for text in ("$HOME/one", "${user.home}/one"):
        with pytest.raises(SettingsError, match="variables are not replaced"):
            LOAD[model](None, {key: text})


@pytest.mark.parametrize(
    ("model", "key"), [(BrokerConfig, "storePathRootDir"), (NameserverConfig, "kvConfigPath")]
)
def test_an_empty_path_is_not_the_current_folder(model: type[SettingsModel], key: str) -> None:
    with pytest.raises(SettingsError, match="is empty"):
        LOAD[model](None, {key: ""})


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize(
    ("model", "key"), [(BrokerConfig, "storePathRootDir"), (NameserverConfig, "kvConfigPath")]
)
def test_without_a_home_the_default_names_the_setting_and_the_way_out(
    model: type[SettingsModel], key: str
) -> None:
    """A nameserver under a bare user number ended with an unexpected RuntimeError."""
    with pytest.raises(SettingsError) as refused:
        LOAD[model](None, {})
    (problem,) = refused.value.problems
    assert (problem.key, problem.origin) == (key, "the default")
    assert "no home folder" in problem.reason
    assert "set HOME" in problem.reason


@pytest.mark.usefixtures("nobody")
def test_without_a_home_a_path_of_its_own_is_enough(tmp_path: Path) -> None:
    assert load_broker(None, {"storePathRootDir": str(tmp_path)}).store_path_root_dir == tmp_path
    assert load_nameserver(None, {"kvConfigPath": f"{tmp_path}/kv"})


def test_the_home_of_a_user_who_is_not_there_is_named() -> None:
    with pytest.raises(SettingsError, match="there is no user 'nobody-here'"):
        load_broker(None, {"storePathRootDir": "~nobody-here/store"})


# --- wrong values

WRONG = ["", "-1", "999999999999999999999", "maybe", "a b", "1.5", "x" * 500]


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_a_wrong_value_is_told_in_one_sentence(model: type[SettingsModel], name: str) -> None:
    """It was told twice, in the words of a library and in ours; patterns were shown as they stand in the code."""
    key = str(model.model_fields[name].alias)
    for text in WRONG:
        try:
            LOAD[model](None, {key: text})
        except SettingsError as refused:
            (problem,) = refused.problems
            assert len(problem.reason) > 10
            for noise in ("Input should", "String should", "; allowed:", "^", "validation", "Value error"):
                assert noise not in problem.reason, f"{key} = {text[:20]!r}: {problem.reason}"


@pytest.mark.parametrize(("model", "name"), FIELDS)
def test_numbers_and_choices_say_what_is_allowed(model: type[SettingsModel], name: str) -> None:
    info = model.model_fields[name]
    if info.annotation in (int, float, bool):
        with pytest.raises(SettingsError) as refused:
            LOAD[model](None, {str(info.alias): "x" * 500})
        (problem,) = refused.value.problems
        assert problem.reason.startswith("must be ")
