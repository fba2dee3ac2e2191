"""Roles in a set, as operators change them. Ours alone: official brokers answer that they do not know these codes.

31990 CHANGE_ROLE   31991 FENCE_WRITES   31992 AWAIT_LEVEL

Touches  nothing but through its parts.

A planned hand-over is these in order, by whoever leads it: FENCE_WRITES at the master, which tells where its log ends;
AWAIT_LEVEL at the slave, with that end; CHANGE_ROLE at the master, then at the slave.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import structlog

from aerobee_broker.lives.role import RoleControl
from aerobee_broker.messages.promises import Promises
from aerobee_broker.remoting_api.fence import Fence
from aerobee_broker.settings.config import BrokerConfig, LiveConfig, field_of
from aerobee_broker.settings.identity import BrokerIdentity
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import AerobeeError, RequestError
from aerobee_proto.headers import AwaitLevelHeader, ChangeRoleHeader, FenceWritesHeader
from aerobee_remoting.exchange.handlers import HandlerTable, Request, Response
from aerobee_remoting.exchange.needs import UPDATE, on_cluster
from aerobee_store.store import MessageStore

__all__ = ["OF_ANOTHER_PROGRAM", "RoleHandlers"]

log = structlog.get_logger()

FENCE_MILLIS_MAX: Final = 60_000
LEVEL_MILLIS_MAX: Final = 3_600_000
SETTLE_S: Final = 3.0  # for what was sent before the fence to be as safe as promised
OF_ANOTHER_PROGRAM: Final = "this broker is part of another program, which has it for one role"
MASTERS: Final = frozenset({"MASTER", "ASYNC_MASTER", "SYNC_MASTER"})


class RoleHandlers:
    """Handlers of the codes above."""

    def __init__(
        self,
        roles: RoleControl | None,
        fence: Fence,
        *,
        live: LiveConfig,
        identity: BrokerIdentity,
        store: MessageStore,
        promises: Promises,
        is_linked: Callable[[], bool],
        level: Callable[[int], Awaitable[None]],
    ) -> None:
        """`roles` is where a wish for another role goes; None: nowhere. `is_linked`: whether a slave has its master;
        `level` returns when it has everything up to an offset, and the tables."""
        self._roles = roles
        self._fence = fence
        self._live = live
        self._identity = identity
        self._store = store
        self._promises = promises
        self._is_linked = is_linked
        self._level = level

    def register(self, table: HandlerTable) -> None:
        """Add the handlers to a table."""
        add, code, needs = table.register, RequestCode, (on_cluster(UPDATE),)
        add(code.CHANGE_ROLE, self.change, header=ChangeRoleHeader, needs=needs)
        add(code.FENCE_WRITES, self.fence, header=FenceWritesHeader, needs=needs)
        add(code.AWAIT_LEVEL, self.await_level, header=AwaitLevelHeader, needs=needs)

    async def change(self, request: Request[ChangeRoleHeader]) -> Response:
        """Another role, from the next life on, which begins when this is answered."""
        header, config = request.header, self._live.value
        if self._roles is None:
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this broker is part of another program, which has it for one role",
            )
        if header.broker_role in MASTERS:
            settings = self._as_master(header)
        elif header.broker_role == "SLAVE":
            settings = self._as_slave(header)
        else:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER,
                f"brokerRole {header.broker_role[:40]} is none of SLAVE, {', '.join(sorted(MASTERS))}",
            )
        if all(_as_text(config, key) == value for key, value in settings.items()):
            return Response(ext=self._facts(), remark=f"it is {config.broker_role} already")
        note = await self._roles.change(
            settings, header.master_addr, header.master_ha_addr, is_forced=header.force
        )
        log.info("broker.role_wanted", peer=request.connection.peer, settings=settings)
        return Response(ext=self._facts() | {"note": note}, remark=note or None)

    def _as_master(self, header: ChangeRoleHeader) -> dict[str, str]:
        config = self._live.value
        if config.is_slave and self._is_linked() and not header.force:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION,
                "its master is there and gives its log: two masters would take messages that only one of them has; "
                "stop the master first, or let the two change places (aerobee cluster switch)",
            )
        in_sync = _given(header.in_sync_replicas, config.in_sync_replicas)
        least = _given(header.min_in_sync_replicas, config.min_in_sync_replicas)
        role = header.broker_role
        if role == "MASTER":
            role = "SYNC_MASTER" if max(in_sync, least) > 1 else "ASYNC_MASTER"
            if not config.is_slave:
                role = config.broker_role
        settings = {"brokerRole": role}
        if in_sync != config.in_sync_replicas or least != config.min_in_sync_replicas:
            settings |= {"inSyncReplicas": str(in_sync), "minInSyncReplicas": str(least)}
        return settings

    def _as_slave(self, header: ChangeRoleHeader) -> dict[str, str]:
        config = self._live.value
        settings = {"brokerRole": "SLAVE", "brokerId": str(_given(header.broker_id, config.broker_id))}
        if config.ha_master_address and header.master_ha_addr:
            settings["haMasterAddress"] = header.master_ha_addr
        return settings

    async def fence(self, request: Request[FenceWritesHeader]) -> Response:
        """Let nothing be written for a while, and say where the log ends when all that was sent is answered."""
        millis = request.header.millis
        if not 0 <= millis <= FENCE_MILLIS_MAX:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"millis must be 0 to {FENCE_MILLIS_MAX}")
        if self._live.value.is_slave:
            raise RequestError(
                ResponseCode.ILLEGAL_OPERATION, "this broker is a slave: nothing is written here"
            )
        if not millis:
            self._fence.down()
            return Response(ext=self._facts())
        self._fence.up(millis / 1000)
        try:
            async with asyncio.timeout(min(SETTLE_S, millis / 1000)):
                await self._promises.settled()
        except TimeoutError:
            log.warning("broker.fenced_sends_unsettled", count=self._promises.waiting_count)
        return Response(ext=self._facts())

    async def await_level(self, request: Request[AwaitLevelHeader]) -> Response:
        """Answer when this slave has the log up to an offset, as safe as it promises, and the master's tables."""
        header = request.header
        if not self._live.value.is_slave:
            raise RequestError(ResponseCode.ILLEGAL_OPERATION, "this broker is a master: it follows nobody")
        if not 0 < header.millis <= LEVEL_MILLIS_MAX:
            raise RequestError(ResponseCode.INVALID_PARAMETER, f"millis must be 1 to {LEVEL_MILLIS_MAX}")
        try:
            async with asyncio.timeout(header.millis / 1000):
                await self._level(header.end_offset)
        except TimeoutError:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"after {header.millis} ms this slave is at {self._promises.kept_offset} of {header.end_offset}",
            ) from None
        except (AerobeeError, OSError) as failed:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"the master's tables were not read: {failed}"
            ) from failed
        return Response(ext=self._facts())

    def _facts(self) -> dict[str, str]:
        """Who this is, as whoever leads a hand-over has to know it."""
        me, config = self._identity, self._live.value
        return {
            "endOffset": str(self._store.end_offset),
            "brokerAddr": me.broker_addr,
            "haAddr": me.ha_addr,
            "brokerRole": config.broker_role,
            "brokerId": str(config.broker_id),
            "inSyncReplicas": str(config.in_sync_replicas),
            "minInSyncReplicas": str(config.min_in_sync_replicas),
        }


def _given(value: int | None, otherwise: int) -> int:
    return otherwise if value is None else value


def _as_text(config: BrokerConfig, key: str) -> str:
    return str(getattr(config, field_of(key)))
