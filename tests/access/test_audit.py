"""The audit log."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aerobee_access import audit as audit_module
from aerobee_access.audit import FREE_LINES_MAX, LINES_A_SECOND_MAX, WAITING_MAX, AuditLog

NOW_MS = 1_769_851_800_123


def audit(
    path: Path, *, size_max: int = 1 << 20, files_max: int = 3, now_ms: Callable[[], int] = lambda: NOW_MS
) -> AuditLog:
    return AuditLog(path, size_max=size_max, files_max=files_max, now_ms=now_ms)


def write(
    log: AuditLog, reason: str = "because", peer: str = "10.0.0.7:1", *, is_change: bool = False
) -> None:
    log.write(
        "refused",
        user="anna",
        peer=peer,
        code=310,
        request="SEND_MESSAGE_V2",
        reason=reason,
        is_change=is_change,
    )


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_says_who_from_where_what_and_why(tmp_path: Path) -> None:
    log = audit(tmp_path / "new" / "audit.log")
    write(log)
    log.close()
    assert lines(log.path) == [
        {
            "time": "2026-01-31T09:30:00.123+00:00",
            "decision": "refused",
            "user": "anna",
            "from": "10.0.0.7:1",
            "code": 310,
            "request": "SEND_MESSAGE_V2",
            "reason": "because",
        }
    ]
    assert log.path.stat().st_mode & 0o777 == 0o600


def test_nothing_is_made_before_the_first_line(tmp_path: Path) -> None:
    log = audit(tmp_path / "new" / "audit.log")
    log.close()
    assert not log.path.parent.exists()


@pytest.mark.parametrize("files_max", [1, 3])
def test_files_turn_over_and_the_oldest_goes(tmp_path: Path, files_max: int) -> None:
    log = audit(tmp_path / "audit.log", size_max=4096, files_max=files_max)
    for number in range(200):
        write(log, f"line {number}")
    log.close()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert set(names) <= {"audit.log", "audit.log.1", "audit.log.2"}
    assert len(names) <= files_max
    for name in names:
        assert (tmp_path / name).stat().st_size < 4096 + 512
    newest = [line["reason"] for name in ("audit.log.1", "audit.log") if (tmp_path / name).exists()
              for line in lines(tmp_path / name)]  # fmt: skip
    if files_max > 1:
        assert newest[-1] == "line 199"


def test_another_run_goes_on_in_the_same_file(tmp_path: Path) -> None:
    for _ in range(2):
        log = audit(tmp_path / "audit.log")
        write(log)
        log.close()
    assert len(lines(tmp_path / "audit.log")) == 2


def test_what_a_stranger_sends_stays_one_line_of_bounded_length(tmp_path: Path) -> None:
    log = audit(tmp_path / "audit.log")
    write(log, 'x"\n{}\u2028\ud800' + "y" * 100_000)
    log.close()
    (line,) = lines(log.path)
    assert len(line["reason"]) == 512


def test_lines_that_the_disk_does_not_take_are_counted(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    log = audit(tmp_path / "file" / "audit.log")
    write(log)
    log.close()  # told in the log of events, and nothing is raised
    assert log.lost == 1
    log = audit(tmp_path / "audit.log", size_max=1 << 30)
    for _ in range(5 * WAITING_MAX):
        write(log)
    left_out = log.left_out
    log.close()
    found = lines(log.path)
    assert sum(line.get("left_out", 0) for line in found) + len(found) + left_out == 5 * WAITING_MAX
    assert log.lost == 5 * WAITING_MAX - len(found)


def test_who_is_refused_on_purpose_does_not_push_out_what_others_did(tmp_path: Path) -> None:
    now_ms = NOW_MS
    log = audit(tmp_path / "audit.log", now_ms=lambda: now_ms)
    for number in range(FREE_LINES_MAX + 100):
        write(log, f"line {number}", f"[2001:db8::{number:x}]:1")
    write(log, "granted", "[2001:db8::1]:1", is_change=True)
    write(log, "of another", "10.0.0.8:1")
    now_ms += 1000
    for _ in range(LINES_A_SECOND_MAX + 5):
        write(log, "later", "[2001:db8::1]:1")
    now_ms -= 3_600_000  # the clock is put back
    write(log, "much later", "[2001:db8::1]:1")
    log.close()
    found = lines(log.path)
    reasons = [line["reason"] for line in found]
    assert reasons[FREE_LINES_MAX - 1 :] == [
        f"line {FREE_LINES_MAX - 1}",
        "granted",
        "of another",
        *["later"] * LINES_A_SECOND_MAX,
    ]
    assert found[FREE_LINES_MAX]["left_out"] == 100
    assert log.lost == 106


def test_the_longest_quiet_address_is_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_module, "ADDRESSES_MAX", 2)
    monkeypatch.setattr(audit_module, "FREE_LINES_MAX", 1)
    log = audit(tmp_path / "audit.log")
    for host in ("a", "b", "a", "c", "a", "b"):
        write(log, host, f"{host}:1")
    log.close()
    assert [line["reason"] for line in lines(log.path)] == ["a", "b", "c", "b"]
