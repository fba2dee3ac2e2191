"""Decisions of RocketMQ 5.3.3, made by its own code and by a running broker, against ours.

Each world is a set of users and policies with requests. With `authCompat=5.3.3` every decision and every remark is the
same. By default they are too, but for what is named here.
"""

import gzip
import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from access.support import Caller, table_of
from aerobee_access.gate import NOT_SIGNED, AccessGate, AccessRules
from aerobee_access.settings import listed_codes
from aerobee_proto.codes import RequestCode
from aerobee_proto.errors import RequestError
from aerobee_proto.frames import (
    CODEC_JSON,
    CODEC_ROCKETMQ,
    Command,
    Frame,
    FrameDecoder,
    decode_command,
    encode_command,
)
from aerobee_proto.requests import AnyIncoming, Envelope, Incoming, NoFields
from aerobee_remoting.exchange.gate import Row
from aerobee_remoting.exchange.handlers import Entry
from aerobee_remoting.exchange.needs import Open

GOLDEN = Path(__file__).parents[1] / "golden" / "access"
WORLDS = sorted(path.name.removesuffix(".json.gz") for path in (GOLDEN / "worlds").glob("*.json.gz"))
NO_FIELDS = NoFields()
# Several groups and topics in one body: which of them is named first is an accident there.
SEVERAL = frozenset({34, 41, 42})


class Outcome(NamedTuple):
    allowed: bool
    code: int | None = None
    remark: str | None = None


@cache
def world_of(name: str) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / "worlds" / f"{name}.json.gz").read_bytes()))
    return read


def frame_of(case: Mapping[str, Any]) -> Frame:
    command = Command(
        case["code"],
        version=case.get("version", 479),
        flag=case.get("flag", 0),
        ext_fields=case["ext"],
        body=b64decode(case.get("bodyB64", "")),
        codec=CODEC_ROCKETMQ if case.get("codec") == "ROCKETMQ" else CODEC_JSON,
    )
    (frame,) = FrameDecoder().feed(encode_command(command))
    return frame


def shown(entry: Row | None, code: int, frame: Frame) -> tuple[Row, AnyIncoming]:
    """Row and request as a connection shows them to its gate."""
    if isinstance(entry, Entry):
        with suppress(RequestError):
            read = entry.decoder.decode(frame)
            assert read.ext is not None
            return entry, Incoming(read, frame, read.ext, frame[2])
    # Nobody serves it, or the header cannot be read.
    version = decode_command(frame).version
    envelope: Envelope[msgspec.Struct] = Envelope(code, NO_FIELDS, version=version)
    nobody = Row(code, "nobody", NoFields, Open("nothing comes of it"))
    return nobody, Incoming(envelope, frame, NO_FIELDS, frame[2])


def gate_of(name: str, folder: Path, *, as_official: bool) -> AccessGate:
    """The gate of a world."""
    world = world_of(name)
    config = world["config"]
    rules = AccessRules(
        "DefaultCluster",
        authentication=config.get("authenticationEnabled") == "true",
        authorization=config.get("authorizationEnabled") == "true",
        unsigned_codes=listed_codes(config.get("authenticationWhitelist", "")),
        free_codes=listed_codes(config.get("authorizationWhitelist", "")),
        as_official=as_official,
    )
    return AccessGate(table_of(world, folder), rules)


def outcomes(
    name: str, folder: Path, served: Mapping[int, Row], *, as_official: bool
) -> Iterator[tuple[dict[str, Any], Row, Outcome]]:
    """Each case with the row of its code and what our gate says."""
    gate = gate_of(name, folder, as_official=as_official)
    callers: dict[str, Caller] = {}
    for case in world_of(name)["cases"]:
        frame = frame_of(case)
        row, request = shown(served.get(case["code"]), case["code"], frame)
        address = case.get("proxyIp") or case["ip"]
        caller = callers.setdefault(address, Caller(address))  # so that what is kept for a connection counts
        try:
            gate.admit(caller, row, request)
        except RequestError as refused:
            yield case, row, Outcome(False, int(refused.code), refused.remark)
        else:
            yield case, row, Outcome(True)


def official(case: Mapping[str, Any]) -> Outcome:
    decision = case["decision"]
    return Outcome(decision["allowed"], decision.get("code"), decision.get("remark"))


def is_same(case: Mapping[str, Any], row: Row, ours: Outcome, theirs: Outcome) -> bool:
    if ours == theirs:
        return True
    if row.name == "nobody" and not theirs.allowed:
        return ours.allowed  # it is answered that nobody serves it
    return case["code"] in SEVERAL and ours[:2] == theirs[:2]


@pytest.mark.parametrize("name", WORLDS)
def test_with_compatibility_every_decision_is_the_original_s(
    name: str, served: dict[int, Row], tmp_path: Path
) -> None:
    count = 0
    for case, row, ours in outcomes(name, tmp_path, served, as_official=True):
        assert is_same(case, row, ours, official(case)), (case["id"], case["why"], ours, official(case))
        count += 1
    assert count == len(world_of(name)["cases"]) > 50


def test_every_case_of_the_worlds_is_there() -> None:
    assert sum(len(world_of(name)["cases"]) for name in WORLDS) == 3417


@pytest.mark.parametrize("name", WORLDS)
def test_by_default_decisions_differ_only_where_the_original_is_wrong(
    name: str, served: dict[int, Row], tmp_path: Path
) -> None:
    """Precise entries first, a Deny before an Allow; forgotten codes need something; who sends to a retry topic has to
    read for its group, whatever group it names; a request without any field needs what others need; who is disabled may
    do nothing, whether signatures are looked at or not."""
    differ = 0
    for case, row, ours in outcomes(name, tmp_path, served, as_official=False):
        theirs = official(case)
        if case.get("order"):
            assert ours.allowed is case["byPrecision"], case["id"]
        elif is_same(case, row, ours, theirs):
            continue
        elif ours[:2] == theirs[:2] and ours.remark == NOT_SIGNED:  # which users there are is not told
            assert str(theirs.remark).endswith((" is not found.", " is disabled.")), case["id"]
            continue
        elif str(ours.remark).endswith(" is disabled."):
            assert not ours.allowed, case["id"]
            continue
        elif not isinstance(row.needs, Open) and any(rule.ours for rule in row.needs):
            assert theirs.allowed or not ours.allowed, case["id"]
        elif case["code"] in (310, 320):
            assert "%RETRY%" in case["ext"]["b"], case["id"]
        elif not case["ext"]:
            assert not ours.allowed, case["id"]
        else:  # one of several needs, of which one depends on the order
            assert name == "precedence", (case["id"], ours, theirs)
            assert case["code"] == RequestCode.PULL_MESSAGE
            assert not ours.allowed
            assert not theirs.allowed
        differ += 1
    assert differ < len(world_of(name)["cases"]) / 4
