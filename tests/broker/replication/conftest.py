"""Pairs in one process wait for no clock of their own."""

import pytest

from aerobee_broker import broker
from aerobee_broker.replication import following, metadata


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "SYNC_S", 0.05)
    monkeypatch.setattr(metadata, "COVERED_S", 0.01)
    monkeypatch.setattr(following, "RETRY_FIRST_S", 0.01)
    monkeypatch.setattr(broker, "DRAIN_S", 0.2)
