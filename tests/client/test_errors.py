import inspect

import pytest

from aerobee import errors
from aerobee.errors import (
    AlreadyExists,
    Attempt,
    BadAnswer,
    BrokerRefused,
    BrokerUnreachable,
    BufferFull,
    ClientClosed,
    ClientError,
    DamagedRecord,
    HidesMessages,
    InvalidMessage,
    NameserverAnswer,
    NoBroker,
    NoNameserver,
    NoQueue,
    NoReply,
    NoRoute,
    NotFound,
    NotPermitted,
    RequestTimeout,
    SendFailed,
)

UNKNOWN = NameserverAnswer("n:9876", "does not know the topic")
SILENT = NameserverAnswer("m:9876", "no answer within 3 s")

TEXTS: dict[str, tuple[ClientError, list[str]]] = {
    "no route": (
        NoRoute("oders", [SILENT, UNKNOWN], ["orders"], True),
        [
            "'oders'",
            "m:9876: no answer",
            "n:9876: does not know",
            "orders",
            "a broker here creates unknown topics",
        ],
    ),
    "no route, no auto-create": (NoRoute("t", [UNKNOWN], (), False), ["no broker here creates topics"]),
    "no route, offer not known": (NoRoute("t", [UNKNOWN]), ["create it (aerobee topic create t"]),
    "no route, all silent": (NoRoute("t", [SILENT]), ["check that a nameserver runs", "aerobee doctor"]),
    "no nameserver": (NoNameserver("list topics", [SILENT]), ["list topics", "m:9876: no answer", "doctor"]),
    "no broker": (NoBroker("t", "master of broker b", []), ["'t'", "master of broker b", "route: none"]),
    "not found": (
        NotFound("group", "ordrs", where="on b", near_names=["orders"], advice="aerobee group list"),
        ["no group 'ordrs' on b", "similar: orders", "aerobee group list"],
    ),
    "not found, a short list": (
        NotFound("broker", "x", known=["a", "b"]),
        ["no broker 'x'", "there are: a, b"],
    ),
    "exists": (
        AlreadyExists("topic", "t", {"b": "4 queues"}),
        ["topic 't' exists on b with 4 queues", "aerobee topic alter t", "client.admin.update_topic"],
    ),
    "hides": (
        HidesMessages("t", {("b", queue_id): 2 for queue_id in range(10)}),
        ["hides 20 stored messages", "b:0 has 2", "and 2 more queues", "hide_messages=True"],
    ),
    "timeout": (RequestTimeout("query", "b:1", 2.5), ["query", "b:1", "within 2.5 s"]),
    "unreachable": (BrokerUnreachable("query", "b:1", "refused"), ["b:1", "refused", "brokerIP1"]),
    "refused": (
        BrokerRefused("send", "b:1", 16, "topic is sealed"),
        ["b:1", "16 NO_PERMISSION", "topic is sealed"],
    ),
    "refused, unknown code": (BrokerRefused("send", "b:1", 4711, None), ["4711 unknown code"]),
    "bad answer": (
        BadAnswer("pull q", "b:1", "the field x is missing"),
        ["pull q", "of b:1", "x is missing"],
    ),
    "bad answer, from somebody": (
        BadAnswer("look up t", "", "empty"),
        ["look up t: the answer cannot be used"],
    ),
    "send failed": (
        SendFailed("t", [Attempt("b", "b:1", "busy", 12)], "1 attempts failed"),
        ["'t'", "1 attempts failed", "broker b at b:1: tried once, after 0.0 s: busy"],
    ),
    "send failed often": (
        SendFailed("t", [Attempt("b", "b:1", "busy", 12, 34, 100, 29_300)], "time was over"),
        ["time was over", "broker b at b:1: tried 34 times, from 0.1 s to 29.3 s: busy"],
    ),
    "not permitted": (
        NotPermitted("t", "queue that may be written", ["b"], "w"),
        ["'t'", "may be written", "route: b", "aerobee topic alter t --perm rw"],
    ),
    "no route, no broker": (
        NoRoute("t", [UNKNOWN], topic_count=0),
        ["no broker is registered", "namesrvAddr"],
    ),
    "no route at the default address": (
        NoRoute("t", [NameserverAnswer("127.0.0.1:9876", "cannot connect")]),
        ["used when none is given", "AEROBEE_NAMESERVERS"],
    ),
    "buffer full": (BufferFull(7, 4096), ["7 unanswered", "4096 bytes", "await producer.ready()"]),
    "damaged": (
        DamagedRecord("t", "b", 3, 17, "bad CRC"),
        ["'t'", "broker b, queue 3, offset 17", "bad CRC", "verify"],
    ),
    "no reply": (NoReply("t", "AB17", 3.0), ["'t'", "AB17", "within 3 s", "a consumer that replies"]),
    "closed": (ClientClosed("reader"), ["the reader is closed", "async with"]),
    "invalid": (InvalidMessage("empty body"), ["empty body"]),
    "no queue": (NoQueue("topic 'T' has no queue 9"), ["no queue 9"]),
}


@pytest.mark.parametrize(("error", "words"), TEXTS.values(), ids=TEXTS)
def test_each_error_says_what_was_tried_and_what_to_do(error: ClientError, words: list[str]) -> None:
    text = str(error)
    assert [word for word in words if word not in text] == []


def test_every_error_has_a_row_above_and_one_base() -> None:
    kinds = {
        kind for _, kind in inspect.getmembers(errors, inspect.isclass) if kind.__module__ == errors.__name__
    }
    raised = {kind for kind in kinds if issubclass(kind, BaseException)}
    assert all(issubclass(kind, ClientError) for kind in raised)
    assert raised - {ClientError} == {type(error) for error, _ in TEXTS.values()}


def test_invalid_messages_are_value_errors_too() -> None:
    assert issubclass(InvalidMessage, ValueError)
