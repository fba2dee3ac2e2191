"""The tables that outlive the process: `config/topics.json`, `subscriptionGroup.json`, `consumerOffset.json`.

Touches  <root>/config through the store's `JsonFile`; writes happen in one thread of their own.

Files are standard JSON (integer keys quoted, which RocketMQ reads as well as its own unquoted ones), sorted and
indented. What RocketMQ wrote is read with its unquoted keys. Nothing else is: a file with damage in it is no file, also
where something could still be read, as nobody would know what is missing.

Invariants
- A table is taken from a file of which every byte is as a broker writes it, or from its backup.
- At most one write at a time, in the order of the changes; changes that pile up meanwhile share the next one.
- A table is written when it changed, never otherwise; `save` returns when what was changed before is on disk.
- A write that fails is reported and tried again; the file still holds the content before.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar

import msgspec
import structlog

from aerobee_proto.errors import FormatError
from aerobee_proto.javajson import sorted_steps
from aerobee_proto.written_json import read_written
from aerobee_service.giving_way import GivingWay
from aerobee_service.turns.slices import at_once
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.json_files import JsonFile
from aerobee_store.faults.errors import StoreFull

__all__ = ["AnyTable", "ConfigFiles", "PersistentTable", "decode_config", "encode_config", "table_of"]

log = structlog.get_logger()

RETRY_S: Final = 5.0
# After a write of tables that have changed, the next one is this many times as long away as it took, at most so long.
REST_RATIO: Final = 10
REST_MAX_S: Final = 0.5
INDENT: Final = 2
# Bytes from which entries are indented together, in one call; an entry that has more is alone. 0.1 ms of the
# interpreter.
RUN_SIZE: Final = 32 * 1024


P = TypeVar("P")  # what a file holds, as its table keeps it


class PersistentTable(Protocol[P]):
    """A table that can be written and read back."""

    file_name: str
    revision: int  # grows with each change that must reach the file

    def to_json(self) -> dict[str, Any]:
        """The file's content. A thread goes through it: which entries there are does not change any more, and what an
        entry holds is read in one call of the interpreter, at whatever moment that is.
        """

    def parse(self, content: Mapping[str, object]) -> P:
        """A file's content as the table keeps it. FormatError when it is of another form."""

    def take(self, parsed: P) -> None:
        """Put parsed content in place of the table's own."""


AnyTable = PersistentTable[Any]


def encode_config(content: Mapping[str, object]) -> bytes:
    """Content of a config file: standard JSON, sorted, indented.

    Made entry by entry, sorted and joined in runs: a table may have 100,000 of them, and whoever makes, sorts or copies
    all in one call holds the interpreter, in whatever thread. The whole is copied once.
    """
    pieces: list[bytes] = []
    before = b"{"
    give_way = GivingWay()
    for name in sorted(content):
        pieces += before, _start(1), msgspec.json.encode(str(name)), b": "
        for piece in _table(content[name]):
            pieces.append(piece)
            give_way()
        before = b","
    pieces += (_start(0), b"}\n") if content else (b"{}\n",)
    return b"".join(pieces)


def _table(value: object) -> Iterator[bytes]:
    """In pieces of a fraction of a millisecond each."""
    if not isinstance(value, Mapping):
        yield _text(_plain(value))
        return
    if not value:
        yield b"{}"
        return
    before = b"{"
    for run in _runs(value):
        yield before
        yield _text(run)[1 : -len(_start(1)) - 1]
        before = b","
    yield _start(1)
    yield b"}"


def _runs(table: Mapping[object, object]) -> Iterator[dict[str, msgspec.Raw]]:
    """Its entries by their names, sorted, so many together as have RUN_SIZE bytes."""
    keys = {str(key): key for key in table}
    run, size = dict[str, msgspec.Raw](), 0
    for name in at_once(sorted_steps(keys)):
        entry = msgspec.json.encode(_plain(table[keys[name]]), order="sorted")
        run[name] = msgspec.Raw(entry)
        size += len(entry)
        if size >= RUN_SIZE:
            yield run
            run, size = {}, 0
    if run:
        yield run


def _start(depth: int) -> bytes:
    """Of a line."""
    return b"\n" + b" " * (INDENT * depth)


def _plain(value: object) -> object:
    """As JSON knows it; what has no value is left out."""
    plain = msgspec.to_builtins(value, str_keys=True)  # queue ids become text: standard JSON
    if isinstance(value, msgspec.Struct):
        for name in [name for name, member in plain.items() if member is None]:
            del plain[name]
    return plain


def _text(plain: object) -> bytes:
    """As it stands in the file, of a member of what is outermost there."""
    text = msgspec.json.format(msgspec.json.encode(plain, order="sorted"), indent=INDENT)
    return text.replace(b"\n", _start(1))


def decode_config(raw: bytes) -> dict[str, Any]:
    """Content of a config file, ours or RocketMQ's. ValueError when it is neither."""
    try:
        content = read_written(raw)
    except FormatError as error:
        raise ValueError(str(error)) from error
    if not isinstance(content, dict):
        raise ValueError("the file does not hold a JSON object")  # noqa: TRY004  # bad content, not a bad call
    return content


def table_of(content: Mapping[str, object], name: str) -> Mapping[str, object]:
    """A file's table. FormatError when it is not there: an empty one is written as such, by RocketMQ too."""
    table = content.get(name)
    if not isinstance(table, Mapping):
        raise FormatError(f"it has no table {name}")
    return table


class _Entry:
    """A table and its file."""

    __slots__ = ("lock", "reader", "saved_revision", "table", "writer")

    def __init__(self, table: AnyTable, folder: Path, io: StoreIo) -> None:
        path = folder / table.file_name
        self.table = table
        self.reader = JsonFile(path, io, lambda raw: _parse(table, raw))
        self.writer = JsonFile(path, io, decode_config)
        self.lock = asyncio.Lock()
        self.saved_revision = table.revision

    def write(self, content: Mapping[str, object]) -> None:
        """In the thread for it: make the bytes and put them in the file."""
        self.writer.save(encode_config(content))

    @property
    def is_dirty(self) -> bool:
        return self.table.revision != self.saved_revision


def _parse(table: PersistentTable[P], raw: bytes) -> P:
    try:
        return table.parse(decode_config(raw))
    except FormatError as error:
        raise ValueError(str(error)) from error


class ConfigFiles:
    """Loads the tables, writes them. `prompt` tables are written on change, `periodic` ones after every
    `pause`, `owned` ones when their owners call `save`; at the end all of them. `prompt` tables set `changed`."""

    def __init__(
        self,
        folder: Path,
        io: StoreIo,
        thread: Executor,
        *,
        prompt: Sequence[AnyTable],
        periodic: Sequence[AnyTable],
        changed: asyncio.Event,
        pause: Callable[[], Awaitable[None]],
        owned: Sequence[AnyTable] = (),
    ) -> None:
        """`thread` has one thread for the writes, and ends with `close`."""
        self._folder = folder
        self._io = io
        self._prompt = [_Entry(table, folder, io) for table in prompt]
        self._periodic = [_Entry(table, folder, io) for table in periodic]
        self._entries = [*self._prompt, *self._periodic, *(_Entry(table, folder, io) for table in owned)]
        self._pause = pause
        self._changed = changed
        self._thread = thread

    def load(self) -> None:
        """Fill the tables from their files; a missing one leaves its table as it is.

        CorruptStore names the file when neither it nor its backup can be read.
        """
        for entry in self._entries:
            parsed = entry.reader.load()
            if parsed is not None:
                entry.table.take(parsed)
            if entry.reader.used_backup:
                log.error("broker.config_backup_used", path=str(entry.reader.path), reason=entry.reader.fault)
            entry.saved_revision = entry.table.revision
            entry.writer.readable = entry.reader.readable

    async def read(self, file_name: str) -> dict[str, Any] | None:
        """Content of another file of the config folder, or of its backup; None when there is neither.

        CorruptStore when there is something, but nothing that can be read.
        """
        file = JsonFile(self._folder / file_name, self._io, decode_config)
        return await asyncio.get_running_loop().run_in_executor(self._thread, file.load)

    async def save(self, *tables: AnyTable) -> None:
        """Return when everything that changed before this call (in these tables; none: in all) is on disk.

        Raises OSError when it cannot be written.
        """
        for entry in self._entries:
            if not tables or entry.table in tables:
                await self._save(entry)

    async def _save(self, entry: _Entry) -> None:
        async with entry.lock:
            if not entry.is_dirty:
                return
            revision = entry.table.revision
            content = entry.table.to_json()
            try:
                await asyncio.get_running_loop().run_in_executor(self._thread, entry.write, content)
            except StoreFull as full:
                raise OSError(full.number, str(full)) from full
            entry.saved_revision = revision

    async def run(self) -> None:
        """Write prompt tables when they change and the others at their interval, until cancelled."""
        await asyncio.gather(self._run_prompt(), self._run_periodic())

    async def _run_prompt(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._changed.wait()
            self._changed.clear()
            began = clock()
            if await self._try_save(self._prompt):
                # Who makes groups without end would have a large table written without end.
                await asyncio.sleep(min(REST_RATIO * (clock() - began), REST_MAX_S))
            else:
                await asyncio.sleep(RETRY_S)
                self._changed.set()

    async def _run_periodic(self) -> None:
        while True:
            await self._pause()
            await self._try_save(self._periodic)

    async def _try_save(self, entries: Sequence[_Entry]) -> bool:
        done = True
        for entry in entries:
            try:
                await self._save(entry)
            except OSError as error:
                path = str(entry.writer.path)
                log.error("broker.config_not_saved", path=path, reason=str(error))  # noqa: TRY400
                done = False
        return done

    async def close(self) -> None:
        """Write what is left and end the thread. Raises OSError when it cannot be written."""
        try:
            await self.save()
        finally:
            self._thread.shutdown(wait=True)
