"""Bars: on standard error, for people alone."""

import io
import sys
from types import SimpleNamespace

import pytest

from aerobee_console.terminal import progress as module
from aerobee_console.terminal.progress import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nothing_is_written_when_nobody_looks(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 10) as advance:
        advance(10)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("total", [10, None])
@pytest.mark.parametrize("in_bytes", [True, False])
def test_a_person_sees_what_is_going_on(
    total: int | None, in_bytes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = Terminal()
    monkeypatch.setattr(module, "sys", SimpleNamespace(stderr=screen))
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    with progress("verifying a store", total, in_bytes=in_bytes) as advance:
        advance(5)
    assert "verifying a store" in screen.getvalue()
    assert capsys.readouterr().out == ""
