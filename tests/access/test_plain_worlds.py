"""Decisions of the access control of RocketMQ 4.9, made by its own code and by a running broker, against ours."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from access.support import Caller
from access.test_worlds import frame_of, shown
from aerobee_access.freshness import Freshness, Signing
from aerobee_access.plain_acl import read_plain_acl
from aerobee_access.plain_gate import REMARK, PlainGate
from aerobee_access.signature import sign
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import Command, FrameDecoder, encode_command
from aerobee_remoting.exchange.gate import Row

GOLDEN = Path(__file__).parents[1] / "golden" / "access" / "v1"
UNSERVED = 3
NEWER = {18, 225, 361, 370, 401, 200050, 200051, 200052, 200053, 200054}
COUNTS = {"v1-addresses": (121, 62), "v1-perms": (515, 366)}


@pytest.mark.parametrize("name", COUNTS)
def test_every_decision_is_that_of_the_original(name: str, served: dict[int, Row]) -> None:
    world: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / f"{name}.json.gz").read_bytes()))
    acl = read_plain_acl(world["yml"])
    gate = PlainGate(lambda: acl)
    allowed = 0
    for case in world["cases"]:
        row, request = shown(served.get(case["code"]), case["code"], frame_of(case))
        decision = case["decision"]
        expected = "" if decision["allowed"] else decision["remark"]
        if expected.startswith("No acl config for "):  # there strangers are told which accounts there are
            expected = expected.replace("No acl config for ", "Check signature failed for accessKey=")
        try:
            gate.admit(Caller(case["ip"]), row, request)
        except RequestError as refused:
            remark, code = refused.remark.removeprefix(REMARK), int(refused.code)
        else:
            remark, code = "", 0
        if case["code"] in (50, 51, 53, 54) and remark.startswith("Need admin"):
            continue  # there any account could make itself an administrator
        if case["wire"]["code"] == UNSERVED and remark and not expected:
            assert case["code"] in NEWER, case["id"]
            continue  # not served there; here it does what others need something for
        several = decision.get("needs") and len(decision["needs"]) > 1
        if several and expected.startswith("No default permission"):
            assert remark.startswith("No default permission"), case["id"]
        else:
            assert remark == expected, (case["id"], case["why"], case["code"])
        assert code == (1 if expected else 0)
        assert not expected or case["wire"]["remark"].startswith(REMARK)
        allowed += not remark
    assert (len(world["cases"]), allowed) == COUNTS[name]


READING = (11, 361, 200050, 200051, 200052, 200053, 200054)


@pytest.mark.parametrize("code", READING)
def test_who_may_not_read_a_topic_may_not_by_newer_requests_either(code: int, served: dict[int, Row]) -> None:
    acl = read_plain_acl(
        "accounts:\n- accessKey: ordinary\n  secretKey: 12345678\n  topicPerms: [mine=SUB]\n  groupPerms: [g=SUB]\n"
    )
    gate = PlainGate(lambda: acl)
    for topic in ("mine", "other"):
        fields = sign({"topic": topic, "consumerGroup": "g"}, b"", "ordinary", "12345678")
        (frame,) = FrameDecoder().feed(encode_command(Command(code, ext_fields=fields)))
        row, request = shown(served[code], code, frame)
        if topic == "mine":
            gate.admit(Caller(), row, request)
        else:
            with pytest.raises(RequestError, match="No default permission for topic:other"):
                gate.admit(Caller(), row, request)


@pytest.mark.parametrize("code", [18, 225, 401, 31990, 31991, 31992, 31993, 31994])
def test_what_4_9_did_not_know_and_administrators_alone_may(code: int, served: dict[int, Row]) -> None:
    perms = "  secretKey: 12345678\n  defaultTopicPerm: PUB|SUB\n  defaultGroupPerm: PUB|SUB\n"
    acl = read_plain_acl(
        f"accounts:\n- accessKey: ordinary\n{perms}- accessKey: administrator\n{perms}  admin: true\n"
    )
    gate = PlainGate(lambda: acl)
    for name in ("ordinary", "administrator"):
        fields = sign({"a": "b"}, b"", name, "12345678")
        (frame,) = FrameDecoder().feed(encode_command(Command(code, ext_fields=fields)))
        row, request = shown(served[code], code, frame)
        if name == "administrator":
            gate.admit(Caller(), row, request)
        else:
            with pytest.raises(RequestError, match="Need admin permission"):
                gate.admit(Caller(), row, request)


def test_from_a_white_address_nothing_need_be_asked() -> None:
    acl = read_plain_acl("globalWhiteRemoteAddresses: [10.0.0.*]\n")
    gate = PlainGate(lambda: acl)
    assert gate.lets_all(Caller("10.0.0.9"))
    assert not gate.lets_all(Caller("10.0.1.9"))


def test_a_request_that_says_when_it_was_signed_is_let_in_once(served: dict[int, Row]) -> None:
    acl = read_plain_acl("accounts:\n- accessKey: account\n  secretKey: a secret\n  topicPerms: [T=SUB]\n")
    gate = PlainGate(lambda: acl, freshness=Freshness(lambda: 0, window_ms=1000))
    caller = Caller()
    sign = Signing("account", "a secret", now_ms=lambda: 0)(gate.greeting(caller))
    (frame,) = FrameDecoder().feed(encode_command(Command(14, ext_fields=sign(14, {"topic": "T"}, b""))))
    row, request = shown(served[14], 14, frame)
    gate.admit(caller, row, request)
    for again in (caller, Caller()):
        with pytest.raises(RequestError, match=r"seen before|another connection") as refused:
            gate.admit(again, row, request)
        assert refused.value.code == 1
    assert dict(PlainGate(lambda: acl).greeting(caller)) == {}
