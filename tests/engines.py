"""Tests that run with either engine for sends, and what they do where the native one is not there.

A module whose tests all run with both has `pytestmark = BOTH_ENGINES`: brokers that `system.running` configures have
the engine of the test. Tests that take long have one or the other by their seed (`engine_of`).
"""

import importlib
import importlib.util
import os
import shutil
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from aerobee_broker.native.engine import INTERFACE, MODULE

__all__ = [
    "BOTH_ENGINES",
    "chosen_engine",
    "engine_of",
    "made_engine",
    "make_engines_fail",
    "need_engine",
    "send_engine",
]

_chosen = "auto"


def need_engine(name: str) -> str:
    """The engine's name, back. Skips where it is not installed, and fails in CI where it could have been built."""
    if name == "native" and not _is_there():
        pytest.skip(f"{MODULE} is not installed: ./dev setup builds it where cargo is")
    return name


def _is_there() -> bool:
    if importlib.util.find_spec(MODULE) is not None:
        return True
    if os.environ.get("CI") == "true" and shutil.which("cargo"):
        pytest.fail(f"{MODULE} is not installed, although cargo is there: ./dev setup says why")
    return False


def made_engine() -> Any:
    """A native engine by itself. Only where there is one."""
    return importlib.import_module(MODULE).Engine(
        store_host=bytes((127, 0, 0, 1, 0, 0, 42, 159)),
        record_checksum=True,
        property_crc=True,
        is_indexed=True,
        frame_size_max=1 << 24,
        record_size_max=1 << 22,
    )


def make_engines_fail(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """This method of every native engine that is made from now on."""

    def failing(*_: Any) -> None:
        raise RuntimeError("a fault")

    def faulty(**form: Any) -> Any:
        engine = real.Engine(**form)
        all_ = {name: getattr(engine, name) for name in dir(engine) if not name.startswith("_")}
        return SimpleNamespace(**all_ | {what: failing})

    real = importlib.import_module(MODULE)
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(INTERFACE=INTERFACE, Engine=faulty))


def engine_of(seed: int) -> str:
    """The native one for odd seeds, where it is there."""
    return "native" if seed % 2 and _is_there() else "python"


def chosen_engine() -> str:
    """That of the test in hand; auto where the test says nothing."""
    return _chosen


@pytest.fixture
def send_engine(request: pytest.FixtureRequest) -> Iterator[str]:
    """The engine of brokers that this test configures."""
    global _chosen
    _chosen = need_engine(request.param)
    yield _chosen
    _chosen = "auto"


BOTH_ENGINES = [
    pytest.mark.parametrize("send_engine", ["python", "native"], indirect=True),
    pytest.mark.usefixtures("send_engine"),
]
