"""Why a server could not start, and the way out."""

import errno
import os
import pwd
import socket
from pathlib import Path

import pytest

from aerobee_remoting.ends.server import RemotingServer
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_service.program import start_failures
from aerobee_service.program.start_failures import CannotListen, explain, permission_refused, user_name
from aerobee_service.settings.settings import SettingsError, SettingsProblem


def test_a_taken_port_names_its_owner_and_the_way_out() -> None:
    """`[Errno 98] ... Address already in use` was all, where another command knew the process."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotListen) as refused:
            RemotingServer(HandlerTable()).bind("127.0.0.1", port)
        reason, way_out = explain(refused.value)
    assert reason.startswith(f"127.0.0.1:{port} is taken by ")
    assert f"(pid {os.getpid()})" in reason
    assert "set listenPort to another port" in way_out


def test_an_address_of_another_machine_is_named() -> None:
    with pytest.raises(CannotListen) as refused:
        RemotingServer(HandlerTable()).bind("192.0.2.1", 0)
    reason, way_out = explain(refused.value)
    assert reason == "192.0.2.1 is no address of this machine"
    assert "bindAddress" in way_out


def test_a_port_that_only_root_may_take_is_named() -> None:
    cause = PermissionError(errno.EACCES, "Permission denied")
    reason, way_out = explain(CannotListen(cause, "0.0.0.0", 80))
    assert "ports below 1024" in reason
    assert "listenPort" in way_out


def test_a_folder_of_somebody_else_names_the_owner_and_the_chown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`[Errno 13] Permission denied: 'DIR/lock'` was all, where the doctor knew the way out."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    owner = pwd.getpwuid(tmp_path.stat().st_uid).pw_name
    reason, way_out = explain(PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/lock"))
    assert reason == f"{tmp_path} belongs to {owner}; this user (54321) may not read and write it"
    assert way_out.startswith(f"chown -R 54321 {tmp_path}, or run this as {owner}")


@pytest.mark.parametrize("missing", ["store", "a/b/store", "kvConfig.json"])
def test_what_lies_beside_a_folder_that_is_to_be_made_does_not_change_hands(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The way out of a store in /var/lib must not be a chown of all that is there."""
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    reason, way_out = permission_refused(tmp_path / missing)
    assert reason.startswith(f"{tmp_path} belongs to ")
    assert "chown -R" not in way_out
    assert ("mkdir -p" in way_out) == ("." not in missing)
    assert f"chown 54321 {tmp_path} " not in way_out


def test_a_folder_of_ones_own_that_may_not_be_written_asks_for_chmod(tmp_path: Path) -> None:
    reason, way_out = permission_refused(tmp_path / "absent")
    assert reason.startswith(f"{tmp_path} belongs to {user_name()}, but ")
    assert way_out == f"chmod u+rwX {tmp_path}"


@pytest.mark.parametrize("number", start_failures.WAYS_OUT)
def test_no_way_out_is_in_codes_of_the_system(number: int) -> None:
    reason, way_out = explain(OSError(number, os.strerror(number), "/data/store"))
    assert reason == f"/data/store: {os.strerror(number)}"
    assert len(way_out) > 10
    assert "Errno" not in reason + way_out


def test_what_says_it_all_by_itself_is_left_alone() -> None:
    wrong = SettingsError([SettingsProblem("a", "b", "c", "d")])
    assert explain(wrong) == (str(wrong), "")
    assert explain(ValueError("brokerIP1 is no address")) == ("brokerIP1 is no address", "")
    assert explain(OSError("no certificate")) == ("no certificate", "")
