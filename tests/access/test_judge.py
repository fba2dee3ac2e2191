"""What gates say of sends and pulls that nobody has read as requests: yes where `admit` lets in, and to nobody else."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from access.support import Caller, empty_table
from access.test_plain_worlds import COUNTS
from access.test_plain_worlds import GOLDEN as PLAIN_WORLDS
from access.test_worlds import WORLDS, frame_of, gate_of, shown, world_of
from aerobee_access.freshness import CHALLENGE, Freshness, Signing
from aerobee_access.gate import AccessGate, AccessRules
from aerobee_access.judging import JUDGEMENTS_MAX
from aerobee_access.plain_acl import read_plain_acl
from aerobee_access.plain_gate import PlainGate
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.signature import ACCESS_KEY, SIGNATURE, fields_of, sign, signature_of, signed_content
from aerobee_access.table import AccessTable
from aerobee_access.users import Status
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command, Frame, FrameDecoder, encode_command
from aerobee_proto.names import is_retry_topic
from aerobee_remoting.exchange.gate import Asked, Gate, Row

NAMES = {
    10: ("topic", "producerGroup"),
    310: ("b", "a"),
    320: ("b", "a"),
    11: ("topic", "consumerGroup"),
    361: ("topic", "consumerGroup"),
}
PULLS = (11, 361)
BOTH = AccessRules("C", authentication=True, authorization=True)
SIGNING = AccessRules("C", authentication=True)


@pytest.fixture
def table(tmp_path: Path) -> AccessTable:
    made = empty_table(tmp_path)
    made.create_user("u", "secret")
    made.create_user("off", "secret", status=Status.DISABLE)
    made.write_acl("u", [(PolicyType.CUSTOM, [entry_of("Topic:t*", ["Pub"], None, "Allow")])])
    return made


def read_from(frame: Frame, code: int, version: int = 479) -> tuple[Asked, bytes | None, bytes, bytes]:
    """What a front has to say of a request."""
    fields = fields_of(frame) or {}
    topic, group = (fields.get(name, "") for name in NAMES[code])
    key, signature = fields.get(ACCESS_KEY), fields.get(SIGNATURE)
    asked = (code, None if key is None else key.encode(), topic.encode(), group.encode())
    content = signed_content(fields, version)
    return asked, None if signature is None else signature.encode(), content, frame[2]


def send(topic: str = "t1", user: str | None = "u", secret: str = "secret", group: str = "g") -> Frame:
    fields = {"a": group, "b": topic, "e": "0", "f": "0", "g": "1", "h": "0"}
    if user is not None:
        fields = sign(fields, b"body", user, secret)
    (frame,) = FrameDecoder().feed(encode_command(Command(310, ext_fields=fields, body=b"body")))
    return frame


def admitted(gate: Gate, caller: Caller, served: dict[int, Row], frame: Frame) -> bool:
    try:
        gate.admit(caller, *shown(served[310], 310, frame))
    except RequestError:
        return False
    return True


def judged(gate: Gate, caller: Caller, served: dict[int, Row], frame: Frame) -> bool:
    judging = gate.judging(caller, served)
    assert judging is not None
    return judging.judge(*read_from(frame, 310))


@pytest.mark.parametrize("as_official", [False, True])
@pytest.mark.parametrize("name", WORLDS)
def test_a_judge_agrees_with_its_gate(
    name: str, as_official: bool, served: dict[int, Row], tmp_path: Path
) -> None:
    gate, callers = gate_of(name, tmp_path, as_official=as_official), dict[str, Caller]()
    for case in world_of(name)["cases"]:
        if case["code"] not in NAMES:
            continue
        frame = frame_of(case)
        row, request = shown(served[case["code"]], case["code"], frame)
        if row.name == "nobody":
            continue  # its header cannot be read: no front has it
        caller = callers.setdefault(case["ip"], Caller(case["ip"]))
        try:
            gate.admit(caller, row, request)
        except RequestError:
            is_admitted = False
        else:
            is_admitted = True
        read = read_from(frame, case["code"], case.get("version", 479))
        is_judged = gate.judging(caller, served).judge(*read)
        assert is_judged is (is_admitted and bool(read[0][1])), (case["id"], case["why"])


@pytest.mark.parametrize("name", COUNTS)
def test_a_judge_agrees_with_its_gate_of_4_9(name: str, served: dict[int, Row]) -> None:
    world: dict[str, Any] = json.loads(gzip.decompress((PLAIN_WORLDS / f"{name}.json.gz").read_bytes()))
    acl = read_plain_acl(world["yml"])
    gate = PlainGate(lambda: acl)
    count = 0
    for case in world["cases"]:
        if case["code"] not in NAMES:
            continue
        frame, caller = frame_of(case), Caller(case["ip"])
        row, request = shown(served[case["code"]], case["code"], frame)
        if row.name == "nobody":
            continue
        try:
            gate.admit(caller, row, request)
        except RequestError:
            is_admitted = False
        else:
            is_admitted = True
        read = read_from(frame, case["code"], 0)
        is_judged = gate.lets_all(caller) or gate.judging(caller, served).judge(*read)
        if case["code"] not in PULLS and is_retry_topic(read[0][2].decode()):
            assert is_admitted or not is_judged, (case["id"], case["why"])
            continue
        assert is_judged is is_admitted, (case["id"], case["why"])
        count += 1
    assert count > 20


def test_what_nobody_was_granted_is_asked_for_the_usual_way(
    table: AccessTable, served: dict[int, Row]
) -> None:
    gate, caller = AccessGate(table, BOTH), Caller()
    assert not judged(gate, caller, served, send())
    assert admitted(gate, caller, served, send())
    assert judged(gate, caller, served, send())
    assert not judged(gate, caller, served, send("t2"))
    assert not judged(gate, caller, served, send(group="another"))
    assert not judged(gate, Caller(), served, send()), "on another connection"


def test_every_signature_is_checked(table: AccessTable, served: dict[int, Row]) -> None:
    gate, caller = AccessGate(table, BOTH), Caller()
    assert admitted(gate, caller, served, send())
    for frame in (send(secret="guess"), send(user=None), send(user="off"), send(user="nobody")):
        assert not judged(gate, caller, served, frame)
    asked, _, content, body = read_from(send(), 310)
    assert not gate.judging(caller, served).judge(asked, None, content, body)


@pytest.mark.parametrize(("user", "is_let_in"), [("u", True), ("off", False), ("nobody", False)])
def test_where_nothing_is_granted_a_signature_is_enough(
    table: AccessTable, served: dict[int, Row], user: str, is_let_in: bool
) -> None:
    gate, caller = AccessGate(table, SIGNING), Caller()
    assert judged(gate, caller, served, send(user=user)) is is_let_in
    asked, _, content, body = read_from(send(user=user), 310)
    forged = signature_of(content + body, b"nobody has this secret")
    assert not gate.judging(caller, served).judge(asked, forged, content, body), (
        "made with what stands for no secret"
    )


def test_a_change_is_seen_at_once(table: AccessTable, served: dict[int, Row]) -> None:
    gate, caller = AccessGate(table, BOTH), Caller()
    assert admitted(gate, caller, served, send())
    assert judged(gate, caller, served, send())
    table.update_user("u", "a new secret")
    assert not judged(gate, caller, served, send())
    assert admitted(gate, caller, served, send(secret="a new secret"))
    assert judged(gate, caller, served, send(secret="a new secret"))
    assert not judged(gate, caller, served, send())


def test_a_certificate_is_enough_while_its_user_may_speak(table: AccessTable, served: dict[int, Row]) -> None:
    gate, caller = AccessGate(table, BOTH), Caller(subject="u")
    assert admitted(gate, caller, served, send(user=None))
    assert judged(gate, caller, served, send(user=None))
    table.update_user("u", status=Status.DISABLE)
    assert not judged(gate, caller, served, send(user=None))
    assert not judged(AccessGate(table, SIGNING), Caller(subject="off"), served, send(user=None))


def test_what_is_kept_is_bounded(table: AccessTable, served: dict[int, Row]) -> None:
    gate, caller = AccessGate(table, SIGNING), Caller()
    judge = gate.judging(caller, served).judge
    for number in range(JUDGEMENTS_MAX + 10):
        assert judge(*read_from(send(f"t{number}"), 310))
    assert gate.judgements_kept == 10


def test_a_judge_that_fails_lets_nobody_in(table: AccessTable) -> None:
    asked, signature, content, body = read_from(send(), 310)
    assert not AccessGate(table, BOTH).judging(Caller(), {}).judge(asked, signature, content, body)
    not_text = (310, b"\xff", b"t1", b"g")
    assert not AccessGate(table, SIGNING).judging(Caller(), {}).judge(not_text, signature, content, body)
    acl = read_plain_acl("accounts: []")
    assert not PlainGate(lambda: acl).judging(Caller(), {}).judge(not_text, signature, content, body)


def test_what_counts_once_is_let_in_once_and_again_when_it_was_not_served(
    table: AccessTable, served: dict[int, Row]
) -> None:
    gate, caller = AccessGate(table, SIGNING, freshness=Freshness(lambda: 5_000, window_ms=1_000)), Caller()
    signs = Signing("u", "secret", now_ms=lambda: 5_000)(gate.greeting(caller))
    fields = signs(310, {"a": "g", "b": "t1", "e": "0", "f": "0", "g": "1", "h": "0"}, b"body")
    (frame,) = FrameDecoder().feed(encode_command(Command(310, ext_fields=fields, body=b"body")))
    assert CHALLENGE in gate.greeting(caller)
    judging = gate.judging(caller, served)
    before = judging.mark()
    assert judging.judge(*read_from(frame, 310))
    assert not judging.judge(*read_from(frame, 310))
    judging.go_back(before)
    assert judged(gate, caller, served, frame)
    assert not judged(gate, caller, served, frame)
    assert not admitted(gate, caller, served, frame)


def test_a_connection_that_is_trusted_needs_no_judge(table: AccessTable) -> None:
    inside = Caller()
    gate = AccessGate(table, BOTH, trusts=lambda caller: caller is inside)
    assert gate.lets_all(inside)
    assert not gate.lets_all(Caller())
