"""Arguments of the wrong kind: each public call names the argument, and nothing is sent."""

import asyncio
import inspect
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any, Literal

import pytest

import aerobee
import aerobee.sync
from aerobee import (
    Client,
    ClientConfig,
    ConsumerConfig,
    FetchConfig,
    InvalidMessage,
    MessageQueue,
    OutgoingMessage,
    ProducerConfig,
)
from aerobee.consuming.ranges import RangeConfig
from aerobee.producing.bulk import BulkSender
from aerobee.producing.replay import ReplayConfig
from aerobee.terms.arguments import checked, explain, rules_of
from client.fakes import fake_cluster

ASYNC = (
    aerobee.Client,
    aerobee.Producer,
    aerobee.GroupConsumer,
    aerobee.GroupMessage,
    aerobee.PullConsumer,
    aerobee.Reader,
    aerobee.Admin,
    BulkSender,
)
BLOCKING = (
    aerobee.sync.Client,
    aerobee.sync.GroupConsumer,
    aerobee.sync.GroupMessage,
    aerobee.sync.PullConsumer,
    aerobee.sync.Reader,
)
# Made for each message: they look when something has gone wrong, so they need a real object (below).
HOT = {"Producer.send", "Producer.send_nowait", "BulkSender.entry"}
# Called by the library itself, or with what only it makes.
INNER = {
    "GroupConsumer.acked",
    "GroupConsumer.later",
    "GroupConsumer.put_back",
    "GroupConsumer.reply",
    "GroupConsumer.consume_directly",
    "PullConsumer.walk",
    "Reader.walk",
    "BulkSender.unique_keys",
}
CONFIGS = (ClientConfig, ProducerConfig, FetchConfig, ConsumerConfig, RangeConfig, ReplayConfig)


class Wrong:
    """Nothing that any call takes."""

    def __repr__(self) -> str:
        return "Wrong()"  # the same in every process: it is part of the names of tests


def public_calls() -> Iterator[Any]:
    for kind in (*ASYNC, *BLOCKING):
        for name, function in vars(kind).items():
            bare = getattr(function, "__func__", function)
            if not inspect.isfunction(bare) or (
                name.startswith("_") and (name, kind) != ("__init__", Client)
            ):
                continue
            label = f"{kind.__name__}.{name}"
            if label in HOT | INNER or (name, kind) == ("producer", aerobee.sync.Client):  # it passes all on
                continue
            for argument in rules_of(inspect.unwrap(bare))[0]:
                yield pytest.param(kind, bare, argument, id=f"{kind.__module__}.{label}-{argument}")


def test_there_are_calls_to_look_at() -> None:
    assert len(list(public_calls())) > 120


@pytest.mark.parametrize(("kind", "function", "argument"), list(public_calls()))
def test_a_wrong_argument_is_named(kind: type, function: Callable[..., Any], argument: str) -> None:
    """`Client(9876)`, `consumer("g", 17)` and others were TypeErrors about something deep inside."""
    _, names, rest = rules_of(inspect.unwrap(function))
    values = [None] * (len(names) - 1) + [Wrong()] if argument == rest else []
    named = {} if argument == rest else {argument: Wrong()}

    def call() -> None:
        made = function(object.__new__(kind), *values, **named)
        if inspect.iscoroutine(made):
            asyncio.run(made)

    with pytest.raises(InvalidMessage, match=rf"^{argument} is .*Wrong.*it has to be"):
        call()


SENDS: dict[str, Any] = {
    "topic": 5,
    "body": 5,
    "tags": 5,
    "keys": 17,
    "properties": {"a": 1},
    "queue": "0",
    "sharding_key": 5,
    "delay_level": 1.5,
    "deliver_at": "now",
    "deliver_after": "1 s",
    "flag": 1.5,
    "timeout_s": "3",
}


@pytest.mark.parametrize("argument", SENDS)
async def test_a_wrong_argument_of_a_send_is_named_and_the_producer_stays_well(argument: str) -> None:
    """`send(properties={"a": 1})` was a TypeError: argument of type 'int' is not iterable."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        await producer.send("T", b"x")
        values = {"topic": "T", "body": b"x", argument: SENDS[argument]}
        words = (
            r"a body is bytes or text" if argument == "body" else rf"^{argument} .*(it has to be|is neither)"
        )
        with pytest.raises(InvalidMessage, match=words):
            await producer.send(**values)
        with pytest.raises(InvalidMessage, match=words):
            producer.send_nowait(**values)
        assert (producer.pending_count, producer.pending_bytes) == (0, 0)
        await producer.send("T", b"y")


NEVER = {"minus": -1, "nan": math.nan, "inf": math.inf, "huge": 10**400, "bool": True}


@pytest.mark.parametrize("timeout_s", NEVER.values(), ids=NEVER)
async def test_a_time_that_cannot_be_waited_for_is_refused_by_each_call(timeout_s: float) -> None:
    """NaN waited without an end, -1 was "the brokers are slower than the calls", a large number an OverflowError."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        calls: dict[str, Callable[[], Any]] = {
            "send": lambda: producer.send("T", b"x", timeout_s=timeout_s),
            "send_nowait": lambda: producer.send_nowait("T", b"x", timeout_s=timeout_s),
            "send_batch": lambda: producer.send_batch("T", [b"x"], timeout_s=timeout_s),
            "request": lambda: producer.request("T", b"x", timeout_s=timeout_s),
        }
        for name, call in calls.items():
            with pytest.raises(InvalidMessage, match=r"^timeout_s is .* a number of seconds, 0 or more"):
                await call()
            assert producer.pending_count == 0, name


async def test_a_full_buffer_asks_for_a_time_that_can_be_waited_for() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        async with mq.producer(pending_count_max=1, linger_s=60.0) as producer:
            first = producer.send_nowait("T", b"x")
            with pytest.raises(InvalidMessage, match=r"^timeout_s is -1 .*a number of seconds"):
                await producer.send("T", b"y", timeout_s=-1)
        assert (await first).queue_offset == 0


@pytest.mark.parametrize(
    "argument", [{"delay_level": True}, {"flag": True}, {"deliver_after": "5"}, {"deliver_after": True}]
)
async def test_what_python_takes_for_a_number_is_none_for_a_send(argument: dict[str, Any]) -> None:
    """The broker refused `delay_level=True` ("property DELAY is 'True'"); "5" was a delay of five seconds."""
    (name,) = argument
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        with pytest.raises(InvalidMessage, match=f"^{name} is .*it has to be"):
            await producer.send("T", b"x", **argument)


def test_every_argument_of_a_send_is_in_the_table() -> None:
    rules, _, _ = rules_of(aerobee.Producer.send)
    assert {*rules, "body"} - {"codec"} == set(SENDS)


async def test_messages_of_a_batch_and_entries_of_bulk_are_looked_at_too() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        bad: Any = {"a": 1}
        with pytest.raises(InvalidMessage, match=r"^properties is"):
            await producer.send_batch("T", [OutgoingMessage(b"x", properties=bad)])
        with pytest.raises(InvalidMessage, match=r"^properties is"):
            mq.bulk_sender().entry(b"x", properties=bad)
        with pytest.raises(InvalidMessage, match=r"^keys is"):
            mq.bulk_sender().entry(b"x", keys=bad["a"])


async def test_a_model_that_is_misspelt_is_refused() -> None:
    """`model="broadcast"` was taken for clustering: members missed messages."""
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq:
        wrong: Any = "broadcast"
        with pytest.raises(
            InvalidMessage, match='model is \'broadcast\'; it has to be "clustering" or "broadcasting"'
        ):
            mq.consumer("g", "T", model=wrong)


WRONG_HANDLER: Any = "x"


async def test_a_handler_that_cannot_be_called_is_refused_before_anything_is_pulled() -> None:
    """Every message failed with a traceback and went to the dead letters in the end."""
    async with (
        fake_cluster() as cluster,
        Client(cluster.nameserver.addr) as mq,
        mq.consumer("g", "T") as consumer,
    ):
        with pytest.raises(InvalidMessage, match="handler is 'x'; it has to be a function"):
            await consumer.run(WRONG_HANDLER)

    def blocking(addr: str) -> None:
        refused = pytest.raises(InvalidMessage, match="handler is 'x'; it has to be a function")
        with aerobee.sync.Client(addr) as mq, mq.consumer("g", "T") as consumer, refused:
            consumer.run(WRONG_HANDLER)

    async with fake_cluster() as cluster:
        await asyncio.to_thread(blocking, cluster.nameserver.addr)


def settings() -> Iterator[Any]:
    for config in CONFIGS:
        for field in fields(config):
            yield pytest.param(config, field.name, id=f"{config.__name__}.{field.name}")


@pytest.mark.parametrize(("config", "name"), list(settings()))
def test_a_setting_of_the_wrong_kind_is_named(config: Callable[..., object], name: str) -> None:
    with pytest.raises(InvalidMessage, match=rf"^{name} is .*it has to be"):
        config(**{name: Wrong()})


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (ProducerConfig, {"in_flight_max": 0}),
        (ProducerConfig, {"pending_count_max": 0}),
        (ProducerConfig, {"attempts_max": 0}),
        (ProducerConfig, {"batch_count": -1}),
        (ProducerConfig, {"send_timeout_s": -1.0}),
        (ProducerConfig, {"send_timeout_s": float("nan")}),
        (FetchConfig, {"max_messages": 0}),
        (ConsumerConfig, {"queue_count_max": 0}),
        (ConsumerConfig, {"commit_s": float("inf")}),
        (ClientConfig, {"heartbeat_s": -0.1}),
        (ClientConfig, {"heartbeat_s": 0}),  # a heartbeat without a pause: hundreds a second
        (ClientConfig, {"route_poll_s": 0}),
        (ConsumerConfig, {"commit_s": 0.0}),
        (ConsumerConfig, {"rebalance_s": 0}),
        (ConsumerConfig, {"lock_s": 0}),
        (ConsumerConfig, {"lock_valid_s": 0}),  # no lock, and so no message, ever
        (RangeConfig, {"timeout_s": float("nan")}),
        (ReplayConfig, {"batch_count": 0}),
    ],
    ids=str,
)
def test_a_setting_with_which_nothing_would_happen_is_refused(
    config: Callable[..., object], setting: Mapping[str, Any]
) -> None:
    (name,) = setting
    with pytest.raises(InvalidMessage, match=f"^{name} is"):
        config(**setting)


@checked
def sample(
    text: str = "",
    number: int = 0,
    fraction: float = 0.0,
    kind: Literal["a", "b"] = "a",
    many: "list[str] | None" = None,
    place: MessageQueue | OutgoingMessage | None = None,
    topics: Iterable[str] | Mapping[str, str | None] = (),
) -> str:
    return text


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"text": b"x"}, "text is b'x'; it has to be text"),
        ({"number": True}, "number is True; it has to be a whole number"),
        ({"number": 1.5}, r"number is 1.5 \(float\)"),
        ({"fraction": "1"}, "fraction is '1'; it has to be a number"),
        ({"kind": "c"}, 'kind is \'c\'; it has to be "a" or "b"'),
        ({"many": ["a", 1]}, "many is .*several, each text or None"),
        ({"many": "ab"}, "many is 'ab'"),
        ({"topics": {"T": 5}}, "topics is {'T': 5}.* a mapping of text to text or None"),
        ({"text": Wrong()}, "text is .*Wrong"),
        ({"place": "0"}, "place is '0'; it has to be a MessageQueue, an OutgoingMessage or None"),
    ],
    ids=str,
)
def test_each_kind_of_annotation_has_its_words(values: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidMessage, match=words):
        sample(**values)


def test_what_fits_passes_by_position_and_by_name() -> None:
    assert sample("x", 1, 2, many=["a"]) == "x"
    explain(sample, {"text": "x", "other": Wrong()})


def test_a_long_value_is_cut() -> None:
    wrong: Any = b"x" * 1000
    with pytest.raises(InvalidMessage) as caught:
        sample(wrong)
    assert len(str(caught.value)) < 120


async def test_coroutine_functions_stay_coroutine_functions() -> None:
    @checked
    async def later(text: str) -> str:
        return text

    assert inspect.iscoroutinefunction(later)
    waiting: Coroutine[Any, Any, str] = later("x")
    assert await waiting == "x"
