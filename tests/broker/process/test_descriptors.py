"""Who may have how many descriptors: shared out at the start."""

import resource

import pytest
from structlog.testing import capture_logs

from aerobee_broker.process.descriptors import (
    OTHERS,
    descriptors_of_process,
    plan_descriptors,
    raise_open_files_limit,
)

USUAL_MAPS = 65_530


@pytest.mark.parametrize("files", [256, 300, 1024, 4096, 20_000, 1_048_576])
def test_connections_get_at_most_half_and_the_store_the_rest(files: int) -> None:
    """20,000 connections were allowed where 300 files might be open; the store found none."""
    plan = plan_descriptors(files, USUAL_MAPS, 20_000)
    assert plan.connections == min(20_000, files // 2)
    assert plan.connections + plan.store_files + OTHERS <= max(files, 256)
    assert plan.store_files >= files // 2 - OTHERS
    assert USUAL_MAPS // 2 <= plan.store_maps < USUAL_MAPS


def test_the_store_gets_what_connections_do_not_want() -> None:
    assert plan_descriptors(4096, USUAL_MAPS, 100).store_files == 4096 - 100 - OTHERS


@pytest.mark.parametrize(("was_asked_for", "level"), [(True, "warning"), (False, "info")])
def test_fewer_connections_than_wanted_are_told(
    monkeypatch: pytest.MonkeyPatch, was_asked_for: bool, level: str
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    with capture_logs() as logs:
        assert descriptors_of_process(2048, was_asked_for=was_asked_for).connections == 2048
        assert logs == []
        assert descriptors_of_process(20_000, was_asked_for=was_asked_for).connections == 2048
    (logged,) = logs
    assert (logged["event"], logged["log_level"]) == ("broker.connections_limited", level)
    assert (logged["wanted"], logged["connections"], logged["open_files_limit"]) == (20_000, 2048, 4096)
    assert "LimitNOFILE" in logged["way_out"]


def test_the_limit_is_raised_as_far_as_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the system does not grant, as "unlimited" may be, is no reason not to start."""
    asked: list[tuple[int, int]] = []

    def refuse(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits)
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    raise_open_files_limit()
    assert asked == [(4096, 4096)]
