"""The stores under tests/golden/store: unpacking, opening, and what is expected of them."""

import base64
import ipaddress
import json
from functools import cache
from pathlib import Path
from typing import Any

from aerobee_proto.javahash import tag_hash
from aerobee_proto.properties import KEYS, TAGS, UNIQ_KEY, decode_properties
from aerobee_store.disk.io import DiskIo
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig
from aerobee_store.terms.messages import NewMessage
from store import golden_cases

FOLDER = Path(__file__).parent.parent / "golden" / "store"
CASES = sorted(path.name for path in FOLDER.iterdir() if path.is_dir())
GENERATOR_TIME_MS = 1_760_000_000_000


@cache
def expect(case: str) -> dict[str, Any]:
    """The expect.json of a case; do not change it."""
    loaded: dict[str, Any] = json.loads((FOLDER / case / "expect.json").read_text())
    return loaded


def is_whole(case: str) -> bool:
    """Whether nothing was damaged; an abort file alone is no damage."""
    return not expect(case)["damage"] or case == "features-abort"


WHOLE = [case for case in CASES if is_whole(case)]
DAMAGED = [case for case in CASES if not is_whole(case)]


def unpack(case: str, folder: Path) -> Path:
    """A fresh copy of the store folder."""
    return golden_cases.unpack(case, folder)


def config_of(case: str, root: Path, *, accept_loss: bool = False) -> StoreConfig:
    """The config that the case was written with; our own checksum off, for equal bytes."""
    given = expect(case)["config"]
    return StoreConfig(
        root=root,
        commit_log_file_size=given["mappedFileSizeCommitLog"],
        consume_queue_file_size=given["mappedFileSizeConsumeQueue"],
        index_slots=given["maxHashSlotNum"],
        index_entries=given["maxIndexNum"],
        body_size_max=given.get("maxMessageSize", 4 << 20),
        append_property_crc=given.get("enabledAppendPropCRC", False),
        verify_property_crc=given.get("forceVerifyPropCRC", False),
        record_checksum=False,
        memory_size=1 << 40,
        accept_loss=accept_loss,
    )


class Clock:
    """A clock that stands at `now_ms`."""

    def __init__(self, now_ms: int = GENERATOR_TIME_MS) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms


def store_of(case: str, root: Path, clock: Clock, *, accept_loss: bool = False) -> MessageStore:
    """The case's store, not open yet."""
    return MessageStore(config_of(case, root, accept_loss=accept_loss), io=DiskIo(), clock=clock)


def packed_host(text: str) -> bytes:
    """'10.1.2.3|10911' or '[fe80::1]|1' as a record carries it."""
    host, _, port = text.rpartition("|")
    return ipaddress.ip_address(host.strip("[]")).packed + int(port).to_bytes(4, "big")


def put_of(row: dict[str, Any]) -> NewMessage:
    """The message of an `appendAfter` row, as a broker would hand it over."""
    properties = decode_properties(row["propertiesString"])
    return NewMessage(
        row["topic"],
        row["queueId"],
        0,
        0,
        row["bornTimestamp"],
        packed_host(row["bornHost"]),
        packed_host(row["storeHost"]),
        0,
        0,
        row["body"].encode(),
        row["propertiesString"].encode(),
        tag_hash(properties.get(TAGS)),
        properties.get(KEYS),
        properties.get(UNIQ_KEY),
    )


def record_bytes(row: dict[str, Any]) -> bytes:
    """The official bytes of an `appendAfter` row."""
    return base64.b64decode(row["recordB64"])
