"""The files of the access control of RocketMQ 4.x: read, watched, and changed by request.

Touches  plain_acl.yml and every .yml or .yaml of the folder `acl` beside it.

Invariants
- A file that cannot be read, or says what cannot be meant, changes nothing while the program runs; at a start it
  stops it, as nobody would know who may come in.
- A change by request is written before it counts, and the whole file or nothing of it.
"""

import asyncio
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from aerobee_access.plain_acl import PlainAcl, account_of, perms_of, read_plain_acl
from aerobee_access.plain_yaml import Value, read_yaml, write_yaml
from aerobee_proto.errors import AerobeeError, FormatError
from aerobee_service.logs.event_log import event_logger
from aerobee_service.settings.whole_files import replace_file

__all__ = ["PlainAclDamaged", "PlainFiles"]

log = event_logger("aerobee.access")

LOOK_S: Final = 5.0
SIZE_MAX: Final = 4 << 20
FILES_MAX: Final = 1_000
Mark = tuple[tuple[str, int, int], ...]


class PlainAclDamaged(AerobeeError):
    """A file cannot be read at the start."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"accounts in {path} cannot be read: {reason}; mend the file, or turn aclEnable off")
        self.path = path


class PlainFiles:
    """The accounts in force. `load` before they are used, `run` follows the files."""

    def __init__(self, path: Path, *, now_ms: Callable[[], int]) -> None:
        self.path = path
        self._now_ms = now_ms
        self._mark: Mark = ()
        self._complained: Mark = ()
        self._changing = asyncio.Lock()
        self.acl = PlainAcl()
        self.contents: dict[Path, dict[str, Value]] = {}

    def load(self) -> None:
        """Read every file. PlainAclDamaged names the first that cannot be used; there has to be one."""
        self._mark = self._marks()
        if not self._mark:
            raise PlainAclDamaged(self.path, "it is not there")
        self._take(self._read())

    async def run(self) -> None:
        """Follow the files until cancelled."""
        while True:
            await asyncio.sleep(LOOK_S)
            await self.follow()

    async def follow(self) -> bool:
        """Read the files again if they have changed; whether they count now."""
        mark = await asyncio.to_thread(self._marks)
        if mark in (self._mark, self._complained):
            return False
        try:
            read = await asyncio.to_thread(self._read)
        except PlainAclDamaged as failed:
            self._complained = mark
            log.error("access.accounts_unreadable", path=str(failed.path), reason=str(failed))  # noqa: TRY400
            return False
        self._mark = mark
        self._take(read)
        log.info("access.accounts_read", path=str(self.path), accounts=len(self.acl.accounts))
        return True

    # --- changes by request -----------------------------------------------------------------------------------

    async def put_account(self, fields: Mapping[str, Value]) -> None:
        """Write an account; what is not given stays as it is in the file. FormatError in the words of 4.9; OSError."""
        for name in ("topicPerms", "groupPerms"):
            perms_of(map(str, _listed(fields.get(name))), checked=True)
        account_of(
            {name: value for name, value in fields.items() if name not in ("topicPerms", "groupPerms")}
        )
        async with self._changing:
            path = self._path_of(str(fields["accessKey"])) or self.path
            content = dict(self.contents.get(path, {}))
            accounts = [one for one in _listed(content.get("accounts")) if isinstance(one, dict)]
            old = next((one for one in accounts if one.get("accessKey") == fields["accessKey"]), {})
            merged = old | {name: value for name, value in fields.items() if value is not None}
            # RocketMQ puts a changed account at the end.
            content["accounts"] = [*(one for one in accounts if one is not old), merged]
            await self._write(path, content)

    async def delete_account(self, access_key: str) -> bool:
        """Whether there was one. OSError when the file cannot be written."""
        async with self._changing:
            path = self._path_of(access_key)
            if path is None:
                return False
            content = dict(self.contents[path])
            content["accounts"] = [
                one
                for one in _listed(content.get("accounts"))
                if not (isinstance(one, dict) and one.get("accessKey") == access_key)
            ]
            await self._write(path, content)
            return True

    async def put_white_addresses(self, addresses: list[str], path_text: str) -> bool:
        """Whether the file is one of these. OSError when it cannot be written."""
        async with self._changing:
            path = Path(path_text) if path_text else self.path
            if path != self.path and path not in self.contents:
                return False
            content = dict(self.contents.get(path, {}))
            content["globalWhiteRemoteAddresses"] = [*addresses]
            await self._write(path, content)
            return True

    def version_of(self, path: Path) -> str:
        """JSON of the version that a file carries."""
        versions = _listed(self.contents.get(path, {}).get("dataVersion"))
        found = versions[0] if versions and isinstance(versions[0], dict) else {}
        return json.dumps(
            {"counter": found.get("counter", 0), "timestamp": found.get("timestamp", 0)},
            separators=(",", ":"),
        )

    def _path_of(self, access_key: str) -> Path | None:
        for path, content in self.contents.items():
            for one in _listed(content.get("accounts")):
                if isinstance(one, dict) and one.get("accessKey") == access_key:
                    return path
        return None

    async def _write(self, path: Path, content: dict[str, Value]) -> None:
        versions = _listed(content.pop("dataVersion", None))
        old = versions[0] if versions and isinstance(versions[0], dict) else {}
        counter = old.get("counter", 0)
        number = counter if isinstance(counter, int) else 0
        # Not the first key, as RocketMQ writes it.
        white = content.pop("globalWhiteRemoteAddresses", None)
        content["dataVersion"] = [{"counter": number + 1, "timestamp": self._now_ms()}]
        if white is not None:
            content["globalWhiteRemoteAddresses"] = white
        await asyncio.to_thread(_replace, path, content)
        self._mark = await asyncio.to_thread(self._marks)
        self._take(await asyncio.to_thread(self._read))

    # --- the files --------------------------------------------------------------------------------------------

    def _paths(self) -> list[Path]:
        folder = self.path.parent / "acl"
        found = sorted(one for one in folder.glob("*") if one.suffix in (".yml", ".yaml"))[:FILES_MAX]
        return [self.path, *found] if self.path.exists() else found

    def _marks(self) -> Mark:
        marks = []
        for path in self._paths():
            try:
                known = path.stat()
            except OSError:
                continue
            marks.append((str(path), known.st_mtime_ns, known.st_size))
        return tuple(marks)

    def _read(self) -> dict[Path, tuple[dict[str, Value], PlainAcl]]:
        found = {}
        for path in self._paths():
            try:
                with path.open("rb") as file:
                    text = file.read(SIZE_MAX + 1).decode("utf-8-sig")
                if len(text) > SIZE_MAX:
                    raise FormatError(f"more than {SIZE_MAX} bytes")  # noqa: TRY301  # one of many reasons
                content = read_yaml(text)
                found[path] = (content if isinstance(content, dict) else {}, read_plain_acl(text))
            except (OSError, UnicodeDecodeError, FormatError, RecursionError) as wrong:
                raise PlainAclDamaged(path, str(wrong)) from wrong
        return found

    def _take(self, read: dict[Path, tuple[dict[str, Value], PlainAcl]]) -> None:
        acl = PlainAcl()
        for _, one in read.values():
            acl = acl.joined(one)
        self.acl = acl
        self.contents = {path: content for path, (content, _) in read.items()}


def _replace(path: Path, content: dict[str, Value]) -> None:
    text = write_yaml(content)
    read_plain_acl(text)  # before it is written: what cannot be read again must not be there
    replace_file(path, text.encode())


def _listed(value: Value) -> list[Value]:
    return value if isinstance(value, list) else []
