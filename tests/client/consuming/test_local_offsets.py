import errno
import pwd
from pathlib import Path

import pytest

from aerobee.consuming.local_offsets import LocalOffsets, offsets_folder
from aerobee.errors import ClientError, InvalidMessage
from aerobee.terms.routes import MessageQueue
from client.events import captured_events
from system.failing_calls import failing

Q0, Q1 = MessageQueue("T", "b-a", 0), MessageQueue("T", "b-a", 1)


def test_offsets_survive_in_the_official_layout(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "g")
    offsets.load()
    assert offsets.get(Q0) is None
    offsets.set(Q1, 17)
    offsets.set(Q0, 5)
    offsets.save()
    path = tmp_path / "10.0.0.1@DEFAULT" / "g" / "offsets.json"
    assert path.read_text() == (
        '{"offsetTable":{{"brokerName":"b-a","queueId":0,"topic":"T"}:5,'
        '{"brokerName":"b-a","queueId":1,"topic":"T"}:17}}'
    )
    again = LocalOffsets(tmp_path, "10.0.0.1@DEFAULT", "g")
    again.load()
    assert (again.get(Q0), again.get(Q1)) == (5, 17)


def test_a_file_as_the_official_client_writes_it_is_read(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "c", "g")
    offsets.path.parent.mkdir(parents=True)
    offsets.path.write_text(
        '{\n\t"offsetTable":{{\n\t\t\t"brokerName":"b-a",\n\t\t\t"queueId":1,\n\t\t\t"topic":"T"\n\t\t}:3\n\t}\n}'
    )
    offsets.load()
    assert offsets.get(Q1) == 3


def test_a_broken_file_is_replaced_by_its_backup_or_named(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "c", "g")
    for at in (3, 4):
        offsets.set(Q0, at)
        offsets.save()
    offsets.path.write_text("{")
    with captured_events() as logs:
        offsets.load()
    assert offsets.get(Q0) == 3
    assert [entry["event"] for entry in logs] == ["client.offsets_file_broken"]
    offsets.path.with_suffix(".json.bak").write_text("[")
    with pytest.raises(ClientError, match="repair or remove the files"):
        offsets.load()


def test_the_folder_is_in_the_home_folder_of_the_user(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert offsets_folder(None) == tmp_path / ".rocketmq_offsets"
    assert offsets_folder(Path("~/mine")) == tmp_path / "mine"
    assert offsets_folder(Path("/var/mine")) == Path("/var/mine")


def test_without_a_home_folder_the_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user number without an account had an unexpected RuntimeError."""

    def unknown(number: int) -> pwd.struct_passwd:
        raise KeyError(number)

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(InvalidMessage, match="give offsets_folder"):
        offsets_folder(None)


def test_a_file_that_was_closed_to_others_stays_so_and_a_failure_leaves_nothing(tmp_path: Path) -> None:
    offsets = LocalOffsets(tmp_path, "c", "g")
    offsets.set(MessageQueue("T", "b", 0), 1)
    offsets.save()
    offsets.path.chmod(0o600)
    offsets.save()
    copy = offsets.path.with_suffix(".json.bak")
    assert [path.stat().st_mode & 0o777 for path in (offsets.path, copy)] == [0o600, 0o600]
    with (
        failing("replace", errno.ENOSPC, lambda name: name.endswith(".tmp")),
        pytest.raises(OSError, match="space"),
    ):
        offsets.save()
    assert sorted(path.name for path in copy.parent.iterdir()) == ["offsets.json", "offsets.json.bak"]
