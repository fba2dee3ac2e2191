"""The broker's settings: looking at them, changing those that may change while it runs.

25 UPDATE_BROKER_CONFIG   26 GET_BROKER_CONFIG
"""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog

from aerobee_broker.catalog.topics import TopicTable
from aerobee_broker.settings.config import LiveConfig, field_of, hot_keys, warn_of_unserved
from aerobee_broker.settings.official_keys import UNSUPPORTED_KEYS
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.requests import NoFields
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import GET, UPDATE, on_cluster, ours
from aerobee_service.settings.settings import SettingsError, dump_settings, read_properties
from aerobee_service.settings.settings_edit import store_changes

__all__ = ["SettingsHandlers"]

log = structlog.get_logger()

SETTINGS_BODY_SIZE_MAX: Final = 64 * 1024
IGNORED_NAMED_MAX: Final = 10


class SettingsHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        *,
        live: LiveConfig,
        clock: Callable[[], int],
        topics: TopicTable,
        followers: Mapping[str, Callable[[], None]],
        settings_file: Path | None,
    ) -> None:
        """`followers`: key -> called when it has changed, for what does not look it up at each use. `settings_file` is
        where changes are written too; without it they last for this run.
        """
        self._live = live
        self._clock = clock
        self._topics = topics
        self._followers = followers
        self._settings_file = settings_file

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        add(
            code.UPDATE_BROKER_CONFIG,
            self.update_config,
            needs=(ours(on_cluster(UPDATE)),),
            body_size_max=SETTINGS_BODY_SIZE_MAX,
        )
        add(code.GET_BROKER_CONFIG, self.config, needs=(ours(on_cluster(GET)),))

    async def update_config(self, request: Request[NoFields]) -> Response:
        """Change hot keys, all or none, in the running broker and in its settings file.

        Keys that mean nothing here are ignored as they are in a settings file: with a warning, and named in the answer.
        """
        changes = _parse_properties(request.body)
        if not changes:
            return Response()
        _refuse_cold(changes)
        try:
            changed = self._live.replace(
                changes, origin=f"request of {request.connection.peer}", now_ms=self._clock()
            )
        except SettingsError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if changed:
            shown = {key: changes[key] for key in sorted(changed)}
            log.info("broker.config_changed", peer=request.connection.peer, changes=shown)
            warn_of_unserved(self._live.value, sorted(changed))
            self._apply(changed)
            await self._write_settings(changed)
        return Response(remark=_ignored(changes))

    def _apply(self, changed: set[str]) -> None:
        """Let the parts that keep something of the settings follow."""
        for key, follow in self._followers.items():
            if key in changed:
                follow()
        if changed & {"autoCreateTopicEnable", "defaultTopicQueueNums"}:
            self._topics.ensure_system_topics()
            self._topics.touch()
        if "brokerPermission" in changed:
            self._topics.touch()

    async def _write_settings(self, changed: set[str]) -> None:
        """Let the settings file say what is in use now."""
        path = self._settings_file
        if path is None:
            return
        config = self._live.value
        values = {key: getattr(config, field_of(key)) for key in sorted(changed)}
        try:
            await asyncio.to_thread(store_changes, path, values)
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the change is in effect until the next start; {path} was not written: {error}",
            ) from error

    def config(self, _: Request[NoFields]) -> Response:
        """All settings as `key=value` lines."""
        live = self._live
        lines = [f"{key}={value}\n" for key, value in dump_settings(live.value).items()]
        version = live.version.to_bytes().decode()
        hot = ";".join(sorted(hot_keys()))  # ours; official tools pass over a field that they do not know
        return Response(ext={"version": version, "hotKeys": hot}, body="".join(lines).encode())


def _parse_properties(body: bytes) -> dict[str, str]:
    """Key to value of a text in properties form. RequestError SYSTEM_ERROR when it is none."""
    try:
        pairs = read_properties(body.decode("utf-8"))
    except ValueError as error:
        raise RequestError(ResponseCode.SYSTEM_ERROR, f"the settings are not readable: {error}") from error
    return {key.strip(): value for key, value in pairs.items()}


def _refuse_cold(changes: Mapping[str, str]) -> None:
    """RequestError NO_PERMISSION names every key that a running broker cannot change."""
    allowed = hot_keys() | UNSUPPORTED_KEYS.keys()
    cold = [key for key in changes if key not in allowed]
    if cold:
        reasons = [f"{key[:80]}: only at start, or unknown" for key in cold]
        raise RequestError(
            ResponseCode.NO_PERMISSION, "cannot be changed while the broker runs: " + "; ".join(reasons)
        )


def _ignored(changes: Mapping[str, str]) -> str | None:
    """The keys that had no effect, and why, for the remark of an answer."""
    reasons = [f"{key}: {UNSUPPORTED_KEYS[key]}" for key in changes if key in UNSUPPORTED_KEYS]
    return "ignored: " + "; ".join(reasons[:IGNORED_NAMED_MAX]) if reasons else None
