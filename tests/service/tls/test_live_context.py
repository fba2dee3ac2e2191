"""Certificates that are renewed while the program runs: what is used, what is kept, what is said."""

import asyncio
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trustme
from structlog.testing import capture_logs

from aerobee_service.tls import live_context
from aerobee_service.tls.contexts import TlsUnusable, load_server
from aerobee_service.tls.live_context import EXPIRES_SOON_S, LiveContext, follow
from service.tls.certificates import Settings, write_pair

DAY_S = 86_400.0


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def settings(authority: trustme.CA, tmp_path: Path) -> Settings:
    certificate, key = write_pair(authority, tmp_path, "localhost")
    return Settings(tls_server_cert_path=certificate, tls_server_key_path=key)


def live_of(settings: Settings) -> LiveContext:
    return LiveContext("server", partial(load_server, settings))


def look_twice(live: LiveContext) -> bool:
    """A change is used when it was seen the same in two looks."""
    assert not live.look()
    return live.look()


def test_new_files_are_used_when_they_have_stopped_changing(
    settings: Settings, authority: trustme.CA, tmp_path: Path
) -> None:
    live = live_of(settings)
    before, until = live.context(), live.not_after_s
    assert not look_twice(live)
    assert live.context() is before
    write_pair(authority, tmp_path, "localhost")
    with capture_logs() as logs:
        assert look_twice(live)
    assert live.context() is not before
    assert live.not_after_s == until
    assert [(one["event"], one["end"]) for one in logs] == [("tls.reloaded", "server")]
    assert not look_twice(live)


def test_a_link_that_leads_elsewhere_is_a_change(authority: trustme.CA, tmp_path: Path) -> None:
    """Kubernetes replaces a mounted secret by the link of its folder."""
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_pair(authority, tmp_path / name, "localhost")
    link = tmp_path / "now"
    link.symlink_to("one")
    live = live_of(
        Settings(tls_server_cert_path=f"{link}/server.pem", tls_server_key_path=f"{link}/server.key")
    )
    (tmp_path / "next").symlink_to("two")
    os.replace(tmp_path / "next", link)  # noqa: PTH105
    assert look_twice(live)


def test_between_certificate_and_key_the_old_pair_is_kept(
    settings: Settings, authority: trustme.CA, tmp_path: Path
) -> None:
    live = live_of(settings)
    before = live.context()
    key = Path(settings.tls_server_key_path).read_bytes()
    write_pair(authority, tmp_path, "localhost")
    new_key = Path(settings.tls_server_key_path).read_bytes()
    Path(settings.tls_server_key_path).write_bytes(key)
    with capture_logs() as logs:
        assert not look_twice(live)
        assert not look_twice(live)  # said once
        assert live.context() is before
        (refused,) = logs
        assert (refused["event"], refused["log_level"]) == ("tls.reload_failed", "error")
        assert "key values mismatch" in refused["reason"]
        Path(settings.tls_server_key_path).write_bytes(new_key)
        assert look_twice(live)
    assert [one["event"] for one in logs][1:] == ["tls.reloaded"]


@pytest.mark.parametrize("wrong", [b"", b"rubbish", None], ids=["empty", "rubbish", "gone"])
def test_files_that_cannot_be_used_change_nothing(settings: Settings, wrong: bytes | None) -> None:
    live = live_of(settings)
    before = live.context()
    path = Path(settings.tls_server_cert_path)
    good = path.read_bytes()
    if wrong is None:
        path.unlink()
    else:
        path.write_bytes(wrong)
    with capture_logs() as logs:
        assert not look_twice(live)
        assert live.context() is before
        path.write_bytes(good)
        assert look_twice(live)
    assert [one["event"] for one in logs] == ["tls.reload_failed", "tls.reloaded"]
    assert settings.tls_server_cert_path in logs[0]["reason"]


def test_a_start_with_files_that_cannot_be_used_fails(settings: Settings) -> None:
    with pytest.raises(TlsUnusable):
        live_of(replace(settings, tls_server_key_path="/not/there"))


def test_a_certificate_that_expires_soon_is_told_once_a_day(settings: Settings) -> None:
    now_s = load_not_after(settings) - EXPIRES_SOON_S - DAY_S
    with capture_logs() as logs:
        live = LiveContext("server", partial(load_server, settings), now_s=lambda: now_s)
        assert logs == []
        for _ in range(3):
            now_s += DAY_S
            for _ in range(5):
                live.look()
    assert [one["event"] for one in logs] == ["tls.certificate_expires"] * 3


def load_not_after(settings: Settings) -> float:
    not_after_s = live_of(settings).not_after_s
    assert not_after_s is not None
    return not_after_s


def test_a_key_that_others_may_read_is_told(settings: Settings) -> None:
    path = Path(settings.tls_server_key_path)
    path.chmod(0o644)
    with capture_logs() as logs:
        live_of(settings)
    (told,) = logs
    assert (told["event"], told["path"], told["mode"]) == ("tls.key_is_open", str(path), "0644")


async def test_all_ends_are_followed(
    settings: Settings, authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_context, "LOOK_S", 0.001)
    live = live_of(settings)
    before = live.context()
    write_pair(authority, tmp_path, "localhost")
    task = asyncio.create_task(follow([live]), name="follow")
    async with asyncio.timeout(20):
        while live.context() is before:  # noqa: ASYNC110  # it sets no event
            await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
