"""The role that the settings say, until an operator asks for another one.

Touches  the settings file, when the role changes.

A change is written into that file first, so that the next start of the process has the same role. Where there is none,
or where the environment or the command line says something else, whoever asked is told.

Invariants
- What the file says and what runs differ only from a change to the end of the life that it ends.
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from aerobee_broker.lives.role import ROLE_KEYS, Role
from aerobee_broker.settings.config import BrokerConfig, field_of
from aerobee_proto.codes import ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_service.settings.settings import SettingsError, apply_changes
from aerobee_service.settings.settings_edit import store_changes

__all__ = ["FixedRole"]

log = structlog.get_logger()


class FixedRole:
    """A RoleSource and a RoleControl. All calls from the event loop."""

    def __init__(
        self,
        config: BrokerConfig,
        settings_file: Path | None = None,
        *,
        refusal: str = "",
        read_again: Callable[[], BrokerConfig] | None = None,
    ) -> None:
        """`refusal` says why the role may not change; "": it may. `read_again` reads the settings as the next start of
        the process will."""
        # Fixed for life.
        self._file = settings_file
        self.refusal = refusal
        self._read_again = read_again
        # Moved by changes.
        self._config = config
        self._settings: dict[str, str] = {}  # of all changes so far
        self._expected = _role_of(config)
        self._changed = asyncio.Event()
        self._changing = asyncio.Lock()

    async def first(self) -> Role:
        """The role of the settings."""
        return self._expected

    async def next(self, role: Role) -> Role:
        """Return when an operator wants another one."""
        while self._expected == role:
            self._changed.clear()
            await self._changed.wait()
        return self._expected

    async def change(
        self, settings: Mapping[str, str], master_addr: str, master_ha_addr: str, *, is_forced: bool = False
    ) -> str:
        """As RoleControl says. RequestError: not allowed here, settings that do not go together, a file that cannot be
        written; nothing has changed then."""
        if self.refusal:
            raise RequestError(ResponseCode.NO_PERMISSION, self.refusal)
        if unknown := settings.keys() - ROLE_KEYS:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"{min(unknown)} is not of a role")
        async with self._changing:
            try:
                config = apply_changes(self._config, settings, origin="request")
            except SettingsError as wrong:
                raise RequestError(ResponseCode.INVALID_PARAMETER, str(wrong)) from wrong
            note = await self._keep(config, settings)
            self._config = config
            self._settings |= settings
            self._expected = _role_of(config)._replace(
                settings=tuple(sorted(self._settings.items())),
                master_addr=master_addr,
                master_ha_addr=master_ha_addr,
            )
            self._changed.set()
        return note

    async def _keep(self, config: BrokerConfig, settings: Mapping[str, str]) -> str:
        """Write the file; what is to be said about the next start."""
        if self._file is None:
            return (
                "this broker has no settings file: it has the new role until it stops; start it next time with "
                + " ".join(f"--set {key}={value}" for key, value in sorted(settings.items()))
            )
        values = {key: getattr(config, field_of(key)) for key in sorted(settings)}
        try:
            await asyncio.to_thread(store_changes, self._file, values)
            again = await asyncio.to_thread(self._read_again) if self._read_again is not None else config
        except (OSError, UnicodeDecodeError, SettingsError) as failed:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the role stays: {self._file} was not written: {failed}"
            ) from failed
        others = [key for key, value in values.items() if getattr(again, field_of(key)) != value]
        if not others:
            return ""
        log.warning("broker.role_not_kept", keys=others, settings_file=str(self._file))
        return (
            f"{self._file} says the new role, but the environment or the command line says something else for "
            f"{', '.join(others)}: change that before the next start"
        )


def _role_of(config: BrokerConfig) -> Role:
    return Role(not config.is_slave, member=config.broker_id)
