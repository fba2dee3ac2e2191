"""Finding the native engine: wanted or not, there or not, of this release or another; and what a fault of it does."""

import gc
import sys
from types import SimpleNamespace
from typing import Any
from weakref import ref

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from aerobee_broker.broker import Broker
from aerobee_broker.native.engine import INTERFACE, MODULE, EngineMissing, SendEngine, find_engine
from aerobee_proto.frames import Command, encode_command
from broker.in_memory import broker_in_memory, talking_in_memory
from engines import made_engine, need_engine
from system.running import text_of

PROPERTIES = text_of({"UNIQ_KEY": "0A" * 16})


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, None)


@pytest.mark.usefixtures("missing")
def test_without_the_engine_python_does_the_work() -> None:
    assert find_engine("auto") is None
    assert find_engine("python") is None


@pytest.mark.usefixtures("missing")
def test_an_engine_that_has_to_be_there_and_is_not_is_named_with_the_way_out() -> None:
    with pytest.raises(EngineMissing, match=r"sendEngine is native, and .*aerobee_native.*: install it"):
        find_engine("native")


def test_an_engine_of_another_release_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace(INTERFACE=INTERFACE + 1, Engine=object))
    with capture_logs() as logs:
        assert find_engine("auto") is None
    assert [entry["event"] for entry in logs] == ["broker.engine_refused"]
    with pytest.raises(EngineMissing, match=f"has interface {INTERFACE + 1}, this release needs {INTERFACE}"):
        find_engine("native")


def test_an_engine_that_is_there_is_taken_unless_python_is_asked_for() -> None:
    need_engine("native")
    assert find_engine("auto") is find_engine("native") is not None
    assert find_engine("python") is None


@pytest.mark.usefixtures("missing")
async def test_a_broker_that_needs_the_engine_does_not_start_without_it() -> None:
    with pytest.raises(EngineMissing):
        async with broker_in_memory(send_engine="native"):
            pass


class _Faulty:
    """An engine that fails at each read."""

    asked = 0

    def take(self, *_: Any) -> None:
        self.asked += 1
        raise RuntimeError("a fault")

    def __getattr__(self, _: str) -> Any:
        return lambda *_: None


async def test_after_a_fault_the_broker_goes_on_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    faulty = _Faulty()
    made = SimpleNamespace(INTERFACE=INTERFACE, Engine=lambda **_: faulty)
    monkeypatch.setitem(sys.modules, MODULE, made)
    async with broker_in_memory(send_engine="native") as broker, talking_in_memory(broker) as client:
        assert kind_of(broker) == "native"
        with capture_logs() as logs:
            answers = [await client.put("T", properties=PROPERTIES) for _ in range(3)]
        assert [answer.code for answer in answers] == [0, 0, 0]
        assert [answer.ext["queueOffset"] for answer in answers] == ["0", "1", "2"]
        assert [entry["event"] for entry in logs].count("broker.engine_failed") == 1
        assert kind_of(broker) == "python"
    assert faulty.asked == 1


def kind_of(broker: Broker) -> str:
    return broker.parts.observed.engine()


def test_the_end_of_an_engine_is_heard_of_once() -> None:
    heard: list[str] = []
    engine = SendEngine(_Faulty())
    engine.when_ended(lambda: heard.append("ended"))
    for _ in range(2):
        engine.give_up(RuntimeError("a fault"))
    assert (heard, engine.kind) == (["ended"], "python")


SERVED = (10, 310, 320, 11, 361, 12)
COMMANDS = st.builds(
    Command,
    st.sampled_from([*SERVED * 4, 1, 13, 34, 31, 110, 3100, 0x6F6F, 0]),
    opaque=st.integers(0, 1 << 31 - 1),
    ext_fields=st.sampled_from([{}, {"a": "b"}, {"properties": "x" * 300}]),
    body=st.binary(max_size=20),
    codec=st.sampled_from([0, 1, 2]),
)


@given(st.lists(COMMANDS, max_size=6), st.integers(0, 400), st.integers(0, 1))
def test_a_read_is_left_to_the_engine_if_all_its_requests_are_of_its_kinds(
    commands: list[Command], cut: int, before: int
) -> None:
    need_engine("native")
    engine = made_engine()
    whole = [encode_command(command) for command in commands]
    data, served = b"?" * before + b"".join(whole), [command.code in SERVED for command in commands]
    assert engine.serves_all(data, before) is all(served)
    assert engine.serves_all(data + bytes(7), before) is all(served), (
        "nothing begins there that could be told"
    )
    assert not engine.serves_all(data + bytes(8), before), "no frame is so short"
    if commands and all(served[:-1]):
        left = whole[-1][: min(cut, len(whole[-1]) - 1)]
        # Of one that is not whole, its code counts where it is there.
        said = engine.serves_all(b"".join(whole[:-1]) + left, 0)
        assert said is served[-1] or (said and len(left) < 8 + 13)


@pytest.mark.parametrize("at", [0, 4, 10, 1 << 40, (1 << 64) - 1])
def test_where_no_request_begins_none_is_of_another_kind(at: int) -> None:
    need_engine("native")
    assert made_engine().serves_all(bytes(11), at) is (at != 0)


class _Known:
    def __init__(self, engine: Any) -> None:
        self.engine = engine


@pytest.mark.parametrize("teach", ["queue", "counters", "pull"])
def test_an_engine_does_not_keep_what_leads_back_to_it(teach: str) -> None:
    """A set's member makes a broker for each role that it has: all of those before were kept."""
    need_engine("native")
    engine = made_engine()
    known = _Known(engine)
    if teach == "queue":
        engine.add_queue("T", 0, known, 0, b"")
    elif teach == "counters":
        engine.add_route("T", known, 1, 0)
    else:
        engine.learn_pull(known)
    gone = ref(known)
    del engine, known
    gc.collect()
    assert gone() is None
