"""What each request declares that its caller must be allowed to do, against what RocketMQ's access control asks for.

No gate reads these declarations: there is no access control. Until there is one this walk keeps them right; a gate that
opens a code which was declared too weakly would look as if it worked.
"""

import re
from pathlib import Path

from aerobee_nameserver.config import load_config
from aerobee_nameserver.server import NameServer
from aerobee_proto.codes import RequestCode
from aerobee_remoting.handlers import HandlerTable, Permission
from system.running import running_broker

ADMIN, CLUSTER, INSPECT = Permission.ADMIN, Permission.CLUSTER, Permission.INSPECT
PUBLISH, SUBSCRIBE, ANYONE = Permission.PUBLISH, Permission.SUBSCRIBE, Permission.ANYONE

# RocketMQ's action on a topic, group or cluster -> what of ours is as strict or stricter.
STRICT_ENOUGH = {
    "Pub": {PUBLISH},
    "Sub": {SUBSCRIBE, ADMIN},
    "Sub or Get": {SUBSCRIBE, INSPECT, ADMIN, CLUSTER},
    "Sub or Update": {SUBSCRIBE, ADMIN},
    "Get": {SUBSCRIBE, INSPECT, ADMIN, CLUSTER},
    "Create": {ADMIN},
    "Update": {ADMIN, CLUSTER},
    "Delete": {ADMIN},
}
# Action -> codes that need it, as an official broker of 5.3.3 was seen to ask.
NEEDS = {
    "Pub": {10, 310, 320, 370, 37, 39},
    "Sub": {36, 11, 41, 42, 40, 309, 326, 200050, 200051, 200052, 200053, 200054},
    "Sub or Get": {12, 14, 38},
    "Sub or Update": {15},
    "Get": {29, 30, 31, 32, 202, 300, 351, 354, 33, 203, 307, 343, 352, 208, 223, 303, 321, 345, 308, 200055}
    | {101, 204, 219, 315, 317, 328, 355, 1004, 322, 901, 1012},
    "Create": {17},
    "Update": {323, 222, 353, 314, 100, 102, 205, 217, 327, 905, 906, 908}
    | {103, 104, 216, 904, 1002, 1003, 1011, 1013},
    "Delete": {215, 207},
}
# Codes that it asks nothing for, although they change or tell something: any signed request may have them there.
FORGOTTEN = {
    PUBLISH: {324, 325},
    SUBSCRIBE: {46, 361, 400, 200151},
    INSPECT: {28, 61, 206, 224, 304, 305, 311, 312, 313, 907},
    ADMIN: {18, 25, 26, 200, 225, 306, 316, 318, 319, 329, 401},
    CLUSTER: {21, 43, 45, 60, 201, 402},
}
# Open to everybody. A heartbeat names groups and topics in its body: what it may is for a gate to see in there.
OPEN = {
    RequestCode.HEART_BEAT,
    RequestCode.UNREGISTER_CLIENT,
    RequestCode.GET_CODECS,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ROUTEINFO_BY_TOPIC,
}


async def tables(folder: Path) -> dict[int, Permission]:
    """Code -> what it declares, of brokers and nameservers."""
    async with running_broker(folder) as broker:
        found = declared(broker.handlers)
    config = load_config(overrides={"listenPort": "0", "bindAddress": "127.0.0.1"}, environ={})
    server = NameServer(config, keep_kv=False)
    for code, permission in declared(server._handlers.table()).items():
        assert found.setdefault(code, permission) is permission
    return found


def declared(table: HandlerTable) -> dict[int, Permission]:
    return {code: handler.permission for code, handler in table.by_code.items()}


async def test_every_request_declares_at_least_what_the_original_asks_for(tmp_path: Path) -> None:
    found = await tables(tmp_path)
    for action, codes in NEEDS.items():
        for code in codes & found.keys():
            assert found[code] in STRICT_ENOUGH[action], RequestCode(code).name


async def test_what_the_original_forgot_is_declared_here(tmp_path: Path) -> None:
    found = await tables(tmp_path)
    for permission, codes in FORGOTTEN.items():
        assert {code: found[code] for code in codes} == dict.fromkeys(codes, permission)


async def test_nothing_is_open_or_declared_that_nobody_has_looked_at(tmp_path: Path) -> None:
    """A new code fails here until it is put into one of the tables above."""
    found = await tables(tmp_path)
    assert {code for code, permission in found.items() if permission is ANYONE} == OPEN
    looked_at = OPEN.union(*NEEDS.values(), *FORGOTTEN.values())
    assert {RequestCode(code).name for code in found.keys() - looked_at} == set()


def test_the_declaration_says_that_nothing_reads_it_yet() -> None:
    """True words: whoever reads `permission=` at a handler must not take it for a guard."""
    source = Path(__file__).resolve().parents[2]
    readers = [
        path
        for room in ("proto", "broker", "nameserver")
        for path in (source / room).rglob("*.py")
        if re.search(r"\.permission\b(?! = )", path.read_text(encoding="utf-8"))
    ]
    assert (readers == []) is ("no gate reads it" in (Permission.__doc__ or ""))
