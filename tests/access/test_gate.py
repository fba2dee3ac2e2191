"""What the gate keeps, and what it does not."""

import gc
from pathlib import Path

import pytest

import aerobee_access.gate as gate_module
from access.support import Caller, empty_table
from access.test_every_code import request_of
from aerobee_access.freshness import Freshness, Signing
from aerobee_access.gate import FIELDS_MAX, GRANTED_MAX, KEPT_FREE_MAX, AccessGate, AccessRules
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.signature import sign
from aerobee_access.table import AccessTable
from aerobee_access.users import Status
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command, FrameDecoder, encode_command
from aerobee_proto.headers import TopicHeader
from aerobee_proto.requests import AnyIncoming, Envelope, Incoming
from aerobee_remoting.exchange.gate import Row
from aerobee_remoting.exchange.needs import GET, SUB, need_of_topic, on_topic

ROW = Row(300, "look", TopicHeader, (on_topic("topic", GET, SUB),))
RULES = AccessRules("C", authentication=True, authorization=True)


@pytest.fixture
def table(tmp_path: Path) -> AccessTable:
    made = empty_table(tmp_path)
    made.create_user("u", "secret")
    made.write_acl("u", [(PolicyType.CUSTOM, [entry_of("Topic:t*", ["Sub"], None, "Allow")])])
    return made


def asked(topic: str, *, user: str | None = "u", secret: str = "secret", **more: str) -> AnyIncoming:
    fields = {"topic": topic, **more}
    if user is not None:
        fields = sign(fields, b"", user, secret)
    (frame,) = FrameDecoder().feed(encode_command(Command(300, ext_fields=fields)))
    header = TopicHeader(topic=topic)
    return Incoming(Envelope(300, header, version=479), frame, header, b"")


def remark_of(gate: AccessGate, caller: Caller, request: AnyIncoming) -> str:
    try:
        gate.admit(caller, ROW, request)
    except RequestError as refused:
        return refused.remark
    return ""


def test_what_is_granted_is_kept_for_the_topic_and_the_user(table: AccessTable) -> None:
    gate, caller = AccessGate(table, RULES), Caller()
    assert remark_of(gate, caller, asked("t1")) == ""
    table.create_user("v", "other")
    assert "User:v has no permission" in remark_of(gate, caller, asked("t1", user="v", secret="other"))
    assert "Topic:x from" in remark_of(gate, caller, asked("x"))
    assert remark_of(gate, caller, asked("t1")) == ""


def test_every_signature_is_checked_also_of_what_was_granted(table: AccessTable) -> None:
    gate, caller = AccessGate(table, RULES), Caller()
    assert remark_of(gate, caller, asked("t1")) == ""
    assert remark_of(gate, caller, asked("t1", secret="guess")) == "check signature failed."
    assert remark_of(gate, caller, asked("t1", user=None)) == "username cannot be null."


def test_a_change_of_policies_is_seen_at_once(table: AccessTable) -> None:
    gate, caller = AccessGate(table, RULES), Caller()
    assert remark_of(gate, caller, asked("t1")) == ""
    table.write_acl("u", [(PolicyType.CUSTOM, [entry_of("Topic:t1", ["Sub"], None, "Deny")])])
    assert remark_of(gate, caller, asked("t1")).endswith("the decision is deny.")
    assert remark_of(gate, caller, asked("t2")) == ""


def test_addresses_count_for_each_connection(table: AccessTable) -> None:
    table.write_acl("u", [(PolicyType.CUSTOM, [entry_of("Topic:t*", ["Sub"], ["10.0.0.0/8"], "Allow")])])
    gate = AccessGate(table, RULES)
    assert remark_of(gate, Caller("10.1.1.1"), asked("t1")) == ""
    assert "from 11.1.1.1, no matched" in remark_of(gate, Caller("11.1.1.1"), asked("t1"))


def test_what_is_kept_of_a_connection_is_bounded_and_goes_with_it(table: AccessTable) -> None:
    gate, caller = AccessGate(table, RULES), Caller()
    for number in range(GRANTED_MAX + 10):
        assert remark_of(gate, caller, asked(f"t{number}")) == ""
    assert 0 < gate.kept <= GRANTED_MAX + 1
    del caller
    gc.collect()
    assert gate.kept == 0


def test_what_is_kept_of_all_connections_is_bounded(
    table: AccessTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each has a few decisions nevertheless, and what has gone makes room."""
    monkeypatch.setattr(gate_module, "KEPT_MAX", 20)
    monkeypatch.setattr(gate_module, "COUNTED_AGAIN", 5)
    gate, greedy, other = AccessGate(table, RULES), Caller(), Caller()
    for number in range(100):
        assert remark_of(gate, greedy, asked(f"t{number}")) == ""
    assert gate.kept == 20 + KEPT_FREE_MAX
    for number in range(100):
        assert remark_of(gate, other, asked(f"t{number}")) == ""
    assert gate.kept == 20 + 2 * KEPT_FREE_MAX
    del greedy
    gc.collect()
    for number in range(100):
        assert remark_of(gate, other, asked(f"t{number}")) == ""
    assert gate.kept == 20 + KEPT_FREE_MAX


def test_of_a_read_those_are_turned_away_who_may_not(table: AccessTable) -> None:
    gate = AccessGate(table, RULES)
    run = [asked("t1"), asked("x"), asked("t2", secret="guess"), asked("t3")]
    refused = gate.turned_away(Caller(), ROW, run)
    assert [request for request, _ in refused] == run[1:3]


def test_what_a_handler_finds_is_judged_too(table: AccessTable) -> None:
    gate, request = AccessGate(table, RULES), asked("t1")
    gate.admit_found(Caller(), ROW, request, [need_of_topic("t9", SUB)])
    with pytest.raises(RequestError, match="Topic:x from"):
        gate.admit_found(Caller(), ROW, request, [need_of_topic("x", SUB)])


def test_who_is_trusted_is_not_asked(table: AccessTable) -> None:
    inside = Caller()
    gate = AccessGate(table, RULES, trusts=lambda caller: caller is inside)
    assert remark_of(gate, inside, asked("x", user=None)) == ""
    assert remark_of(gate, Caller(), asked("x", user=None)) != ""


def test_too_many_fields_and_long_names_are_not_worked_on(table: AccessTable) -> None:
    gate = AccessGate(table, RULES)
    many = asked("t1", **{f"f{number}": "" for number in range(FIELDS_MAX)})
    assert "are signed" in remark_of(gate, Caller(), many)
    assert len(remark_of(gate, Caller(), asked("t1", user="n" * 100_000))) < 300


def test_no_connection_is_let_in_without_being_asked(table: AccessTable) -> None:
    """Each request has a signature of its own, so none may be served that was not shown."""
    gate, caller = AccessGate(table, RULES), Caller()
    assert remark_of(gate, caller, asked("t1")) == ""
    assert not gate.lets_all(caller)


def test_requests_of_all_codes_are_kept_apart(served: dict[int, Row], table: AccessTable) -> None:
    """The same topic under another code is another question."""
    gate, caller = AccessGate(table, RULES), Caller()
    table.write_acl("u", [(PolicyType.CUSTOM, [entry_of("*", ["Sub"], None, "Allow")])])
    row, pull = request_of(served[11], "u", "secret")
    gate.admit(caller, row, pull)
    row, create = request_of(served[215], "u", "secret")
    with pytest.raises(RequestError):
        gate.admit(caller, row, create)


def test_a_request_that_says_when_it_was_signed_is_let_in_once(table: AccessTable) -> None:
    freshness = Freshness(lambda: 0, window_ms=1000, is_required_of=lambda user: user == "v")
    gate, caller, other = AccessGate(table, RULES, freshness=freshness), Caller(), Caller()
    sign = Signing("u", "secret", now_ms=lambda: 0)(gate.greeting(caller))
    first = asked(user=None, **sign(300, {"topic": "t1"}, b""))
    liar = asked("t1", secret="guess")
    assert remark_of(gate, caller, liar) == "check signature failed."
    assert remark_of(gate, caller, first) == ""
    assert remark_of(gate, caller, first).endswith("was seen before.")
    assert [request for request, _ in gate.turned_away(caller, ROW, [asked("t1"), first])] == [first]
    assert remark_of(gate, other, first).startswith("signed for another connection")
    assert remark_of(gate, caller, asked("t1")) == ""  # as official clients ask, and again
    table.create_user("v", "other")
    assert "has to sign the time" in remark_of(gate, caller, asked("t1", user="v", secret="other"))
    assert dict(AccessGate(table, RULES).greeting(caller)) == {}


def test_who_cannot_sign_is_not_told_which_users_there_are(
    table: AccessTable, caplog: pytest.LogCaptureFixture
) -> None:
    """Three remarks told names that are users from others, and which of them are disabled. The log still does."""
    table.create_user("off", "secret", status=Status.DISABLE)
    gate, caller = AccessGate(table, RULES), Caller()
    cases = (("u", "guess"), ("nobody", "guess"), ("nobody", "nobody has this secret"), ("off", "guess"))
    for user, secret in cases:
        assert remark_of(gate, caller, asked("t1", user=user, secret=secret)) == "check signature failed.", (
            user
        )
    assert [getattr(record, "reason", "") for record in caplog.records] == [
        "check signature failed.",
        "User:nobody is not found.",
        "User:nobody is not found.",
        "check signature failed.",
    ]
    assert remark_of(gate, caller, asked("t1", user="off")) == "User:off is disabled."  # it knows the secret
