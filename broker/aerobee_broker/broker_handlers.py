"""The broker as a whole: settings, present state, statistics, cleaning.

25 UPDATE_BROKER_CONFIG   26 GET_BROKER_CONFIG   28 GET_BROKER_RUNTIME_INFO   315 VIEW_BROKER_STATS_DATA
306 CLEAN_EXPIRED_CONSUMEQUEUE   316 CLEAN_UNUSED_TOPIC   329 DELETE_EXPIRED_COMMITLOG
907 GET_BROKER_HA_STATUS   908 RESET_MASTER_FLUSH_OFFSET
"""

import asyncio
from collections.abc import Mapping
from typing import Final

import structlog

from aerobee_broker.config import field_of, hot_keys, warn_of_unserved
from aerobee_broker.official_keys import UNSUPPORTED_KEYS
from aerobee_broker.request_bodies import answer
from aerobee_broker.runtime_info import runtime_table
from aerobee_broker.services import Services, delete_queues, save_deletions
from aerobee_broker.stats import Rate
from aerobee_proto.bodies import BrokerStatsData, BrokerStatsItem, HaStatus, KVTable
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.headers import ViewBrokerStatsHeader
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_remoting.settings import SettingsError, dump_settings, read_properties
from aerobee_remoting.settings_edit import store_changes

__all__ = ["BrokerHandlers"]

log = structlog.get_logger()

SETTINGS_BODY_SIZE_MAX: Final = 64 * 1024
IGNORED_TOLD_MAX: Final = 10
LIGHT_PREFIX: Final = "%LMQ%"  # queues that a record's properties name; they have no settings


class BrokerHandlers:
    """Handlers of the codes above."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code = table.register, RequestCode
        admin, inspect = Permission.ADMIN, Permission.INSPECT
        add(
            code.UPDATE_BROKER_CONFIG,
            self.update_config,
            permission=admin,
            body_size_max=SETTINGS_BODY_SIZE_MAX,
        )
        add(code.GET_BROKER_CONFIG, self.config, permission=admin)
        add(code.GET_BROKER_RUNTIME_INFO, self.runtime_info, permission=inspect, overtakes=True)
        add(code.VIEW_BROKER_STATS_DATA, self.statistic, permission=inspect, header=ViewBrokerStatsHeader)
        add(code.GET_BROKER_HA_STATUS, self.replication, permission=inspect)
        add(code.RESET_MASTER_FLUSH_OFFSET, self.reset_master_flush, permission=admin)
        add(code.CLEAN_UNUSED_TOPIC, self.clean_unused_topics, permission=admin)
        add(code.CLEAN_EXPIRED_CONSUMEQUEUE, self.clean_expired, permission=admin)
        add(code.DELETE_EXPIRED_COMMITLOG, self.clean_expired, permission=admin)

    # --- settings ---------------------------------------------------------------------------------------------

    async def update_config(self, request: Request) -> Response:
        """Change hot keys, all or none, in the running broker and in its settings file.

        Keys that mean nothing here are ignored as they are in a settings file: with a warning, and named in the answer.
        """
        changes = _parse_properties(request.body)
        if not changes:
            return Response()
        _refuse_cold(changes)
        try:
            changed = self._services.live.replace(
                changes, origin=f"request of {request.connection.peer}", now_ms=self._services.clock()
            )
        except SettingsError as error:
            raise RequestError(ResponseCode.INVALID_PARAMETER, str(error)) from error
        if changed:
            shown = {key: changes[key] for key in sorted(changed)}
            log.info("broker.config_changed", peer=request.connection.peer, changes=shown)
            warn_of_unserved(self._services.config, sorted(changed))
            self._apply(changed)
            await self._write_settings(changed)
        return Response(remark=_ignored(changes))

    def _apply(self, changed: set[str]) -> None:
        """Let the parts that keep something of the settings follow."""
        services = self._services
        if "namesrvAddr" in changed:
            services.registrar.apply_config()
        if "registerNameServerPeriod" in changed:
            services.registrar.register_all()  # the pauses that are under way are as long as they were
        if "transactionOpBatchInterval" in changed:
            services.transactions.write_marks_in_time()
        if changed & {"autoCreateTopicEnable", "defaultTopicQueueNums"}:
            services.topics.ensure_system_topics()
            services.topics.touch()
        if "brokerPermission" in changed:
            services.topics.touch()

    async def _write_settings(self, changed: set[str]) -> None:
        """Let the settings file say what is in use now."""
        path = self._services.settings_file
        if path is None:
            return
        config = self._services.config
        values = {key: getattr(config, field_of(key)) for key in sorted(changed)}
        try:
            await asyncio.to_thread(store_changes, path, values)
        except (OSError, UnicodeDecodeError, SettingsError) as error:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"the change is in effect until the next start; {path} was not written: {error}",
            ) from error

    def config(self, _: Request) -> Response:
        """All settings as `key=value` lines."""
        live = self._services.live
        lines = [f"{key}={value}\n" for key, value in dump_settings(live.value).items()]
        version = live.version.to_bytes().decode()
        hot = ";".join(sorted(hot_keys()))  # ours; official tools pass over a field that they do not know
        return Response(ext={"version": version, "hotKeys": hot}, body="".join(lines).encode())

    # --- state ------------------------------------------------------------------------------------------------

    def runtime_info(self, request: Request) -> Response | None:
        """The broker's present state, all values as text: in the turn in which it is asked for, but for the first."""
        disk = self._services.disk.known()
        if disk is None:
            request.connection.answer_alone(request, self._runtime_info_later)
            return None
        return self._runtime_info(disk)

    async def _runtime_info_later(self) -> Response:
        return self._runtime_info(await self._services.disk.now())

    def _runtime_info(self, disk: tuple[int, int]) -> Response:
        return answer(KVTable(table=runtime_table(self._services, disk)))

    def statistic(self, request: Request) -> Response:
        """One statistic over the last minute, hour and day; SYSTEM_ERROR when there is none."""
        header: ViewBrokerStatsHeader = request.header
        counter = self._services.stats.find(header.stats_name, header.stats_key)
        if counter is None:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"The stats <{header.stats_name[:64]}> <{header.stats_key[:512]}> not exist",
            )
        return answer(
            BrokerStatsData(
                stats_minute=_item(counter.last_minute()),
                stats_hour=_item(counter.last_hour()),
                stats_day=_item(counter.last_day()),
            )
        )

    def replication(self, _: Request) -> Response:
        """The state of replication: a master, and the end of its log."""
        return answer(HaStatus(master_commit_log_max_offset=self._services.store.end_offset))

    def reset_master_flush(self, _: Request) -> Response:
        """Success without a change: the number belongs to a replica, a master has nothing to reset."""
        return Response()

    # --- cleaning ---------------------------------------------------------------------------------------------

    async def clean_unused_topics(self, _: Request) -> Response:
        """Delete the queues of topics that this broker does not have; system and light queues stay."""
        services = self._services
        for topic in services.store.topics():
            await asyncio.sleep(0)  # deleting takes its time: others have their turn
            if topic in services.topics or services.topics.is_system(topic) or topic.startswith(LIGHT_PREFIX):
                continue
            services.offsets.remove_topic(topic)
            services.stats.topic_deleted(topic)
            count = await delete_queues(services, topic)
            log.info("broker.unused_topic_cleaned", topic=topic, queue_count=count)
        await save_deletions(services)
        return Response()

    def clean_expired(self, _: Request) -> Response:
        """Let expired log files go now, and with them the queue and index files that lead into them.

        Answered at once: deleting takes its time. A queue keeps its numbers also when all its messages are gone.
        """
        self._services.clean()
        return Response()


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
    return "ignored: " + "; ".join(reasons[:IGNORED_TOLD_MAX]) if reasons else None


def _item(rate: Rate) -> BrokerStatsItem:
    return BrokerStatsItem(sum=rate.total, tps=rate.per_second, avgpt=rate.per_time)
