"""Decisions of the access control of RocketMQ 4.9, made by its own code and by a running broker, against ours."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from access.support import Caller
from access.test_worlds import frame_of, shown
from aerobee_access.plain_acl import read_plain_acl
from aerobee_access.plain_gate import REMARK, PlainGate
from aerobee_proto.errors import RequestError
from aerobee_remoting.exchange.gate import Row

GOLDEN = Path(__file__).parents[1] / "golden" / "access" / "v1"
COUNTS = {"v1-addresses": (121, 62), "v1-perms": (515, 379)}


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
        try:
            gate.admit(Caller(case["ip"]), row, request)
        except RequestError as refused:
            remark, code = refused.remark.removeprefix(REMARK), int(refused.code)
        else:
            remark, code = "", 0
        if case["code"] in (50, 51, 53, 54) and remark.startswith("Need admin"):
            continue  # there any account could make itself an administrator
        several = decision.get("needs") and len(decision["needs"]) > 1
        if several and expected.startswith("No default permission"):
            assert remark.startswith("No default permission"), case["id"]
        else:
            assert remark == expected, (case["id"], case["why"], case["code"])
        assert code == (1 if expected else 0)
        assert not expected or case["wire"]["remark"].startswith(REMARK)
        allowed += not remark
    assert (len(world["cases"]), allowed) == COUNTS[name]


def test_from_a_white_address_nothing_need_be_asked() -> None:
    acl = read_plain_acl("globalWhiteRemoteAddresses: [10.0.0.*]\n")
    gate = PlainGate(lambda: acl)
    assert gate.lets_all(Caller("10.0.0.9"))
    assert not gate.lets_all(Caller("10.0.1.9"))
