"""KV config: namespace -> key -> value, small settings that admin tools keep at the nameserver.

Touches  one JSON file, its `.bak` (the state before the last change), as whole_files says.
Bytes    {"configTable":{"<namespace>":{"<key>":"<value>"}}}, as the official nameserver keeps it.

Invariants
- The table in memory is what the file holds: a change is planned, written and synced, then adopted.
- Files are replaced as a whole by renames; a crash leaves the new file, or the old one, or its backup.
- What the table takes is bounded (maxKvBytes: each change writes all of it), and in the account of what is kept.
- A namespace stays when its last key goes, as in the official nameserver.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import structlog

from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import AerobeeError, LimitReached, RequestError
from aerobee_remoting.peers.peer_memory import NOBODY, PeerMemory
from aerobee_service.giving_way import GivingWay
from aerobee_service.settings.whole_files import replace_file

__all__ = ["ORDER_TOPIC_CONFIG", "KvChange", "KvConfig", "KvConfigDamaged", "Table"]

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"  # namespace of ordered topics: topic -> "broker:count;…"
TEXT_CHARS_MAX: Final = 65_536  # of a namespace, key or value
SIZE_MAX: Final = 8 * 1024 * 1024
ENTRY_SIZE: Final = 256  # bytes of an entry besides its texts
PIECE_SIZE: Final = 64 * 1024  # bytes of the file that are put together in one call, and an entry more
KIND: Final = "key-value settings"
DAMAGED: Final = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
)  # raised for bytes of another form

log = structlog.get_logger()

Table = dict[str, dict[str, str]]


class _FileBody(msgspec.Struct, rename="camel"):
    config_table: Table


@dataclass(slots=True, frozen=True)
class KvChange:
    """What is to be: the whole table, and by how many bytes it is larger than the one before."""

    table: Table
    more: int


class KvConfigDamaged(AerobeeError):
    """Neither the file nor its backup can be read."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(
            f"KV config {path} is damaged ({reason}) and so is its backup; repair it or move it away"
        )
        self.path = path
        self.reason = reason


class KvConfig:
    """The table and its file. `path` None keeps it in memory only.

    Changes are made in three steps, so that the caller may write off the event loop, one change at a time:
    `change = kv.planned_put(…)`, `kv.write(change)`, `kv.adopt(change)`.
    """

    def __init__(
        self,
        path: Path | None,
        *,
        entries_max: int = 100_000,
        size_max: int = SIZE_MAX,
        memory: PeerMemory | None = None,
    ) -> None:
        # Fixed for life.
        self._path = path
        self._entries_max = entries_max
        self._size_max = size_max
        self._memory = memory or PeerMemory()
        # Replaced by adopt() and load() only.
        self._table: Table = {}
        self.size = 0  # bytes of the table

    # --- reading ----------------------------------------------------------------------------------------------

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def namespace(self, namespace: str) -> Mapping[str, str] | None:
        """Keys and values of a namespace; None when it never existed."""
        return self._table.get(namespace)

    def __len__(self) -> int:
        return sum(map(len, self._table.values()))

    # --- changing ---------------------------------------------------------------------------------------------

    def planned_put(self, namespace: str, key: str, value: str) -> KvChange:
        """The table with this entry in it. RequestError when it would be too large."""
        _check_text(namespace=namespace, key=key, value=value)
        old = self.get(namespace, key)
        if old is None and len(self) >= self._entries_max:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"KV config holds {len(self)} entries, maxKvEntries is {self._entries_max}",
            )
        more = _entry_size(key, value)
        if old is not None:
            more -= _entry_size(key, old)
        elif namespace not in self._table:
            more += _entry_size(namespace, "")
        if more > 0 and self.size + more > self._size_max:
            raise LimitReached(
                ResponseCode.SYSTEM_ERROR,
                f"KV config takes {self.size} bytes, {more} more are wanted, {self._size_max} are allowed",
                "maxKvBytes",
            )
        self._memory.take(NOBODY, KIND, more)
        self._memory.give(NOBODY, KIND, more)  # there is room; `adopt` keeps it
        return KvChange(self._table | {namespace: self._table.get(namespace, {}) | {key: value}}, more)

    def planned_delete(self, namespace: str, key: str) -> KvChange | None:
        """The table without this entry; None when there is nothing to do."""
        old = self.get(namespace, key)
        if old is None:
            return None
        rest = dict(self._table[namespace])
        del rest[key]
        return KvChange(self._table | {namespace: rest}, -_entry_size(key, old))

    def write(self, change: KvChange) -> None:
        """Put its table on disk: blocks until it is synced. After OSError the old state can still be loaded."""
        if self._path is not None:
            replace_file(self._path, _file_pieces(change.table))

    def adopt(self, change: KvChange) -> None:
        """Its table is on disk: use it."""
        self._table = change.table
        self._grow(change.more)

    def _grow(self, more: int) -> None:
        self._memory.note(NOBODY, KIND, more)
        self.size += more

    def load(self) -> None:
        """Read the file, or its backup when the file is damaged. No file is an empty table.

        Raises KvConfigDamaged when something is there and nothing of it can be read.
        """
        if self._path is None:
            return
        backup = _backup_of(self._path)
        try:
            self._table = _read(self._path)
        except FileNotFoundError:
            self._table = _read(backup) if backup.exists() else {}
        except DAMAGED as damage:
            self._table = _read_backup(self._path, backup, str(damage))
        self._grow(_table_size(self._table) - self.size)


def _read_backup(path: Path, backup: Path, reason: str) -> Table:
    try:
        table = _read(backup)
    except (OSError, *DAMAGED):
        raise KvConfigDamaged(path, reason) from None
    log.warning("nameserver.kv_backup_used", path=str(path), reason=reason)
    return table


def _table_size(table: Table) -> int:
    return sum(
        _entry_size(namespace, "") + sum([_entry_size(key, value) for key, value in entries.items()])
        for namespace, entries in table.items()
    )


def _file_pieces(table: Table) -> Iterator[bytes]:
    """The file, in pieces of PIECE_SIZE and an entry: whoever makes all of it in one call holds the interpreter."""
    encode, give_way = msgspec.json.encode, GivingWay()
    piece = bytearray(b'{"configTable":{')
    between = b""
    for namespace, entries in table.items():
        piece += between + encode(namespace) + b":{"
        between = b""
        for key, value in entries.items():
            piece += between + encode(key) + b":" + encode(value)
            between = b","
            if len(piece) >= PIECE_SIZE:
                yield bytes(piece)
                piece.clear()
                give_way()
        piece += b"}"
        between = b","
    yield bytes(piece + b"}}")


def _entry_size(key: str, value: str) -> int:
    """Bytes of an entry in memory; a character takes up to four."""
    return ENTRY_SIZE + sum(len(text) if text.isascii() else 4 * len(text) for text in (key, value))


def _check_text(**texts: str) -> None:
    for name, text in texts.items():
        if not text:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"{name} of a KV config entry is empty")
        if len(text) > TEXT_CHARS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"{name} of a KV config entry has {len(text)} characters, {TEXT_CHARS_MAX} are allowed",
            )


def _read(path: Path) -> Table:
    return msgspec.json.decode(path.read_bytes(), type=_FileBody).config_table


def _backup_of(path: Path) -> Path:
    return path.with_name(path.name + ".bak")
