"""What a slave has of its master beside the log: topics, groups, request modes, offsets of groups and of delay levels,
users and policies.

Touches  the master, through a client of its own; the tables.

Asked for when the link to the master begins, when a new topic comes, and every SYNC_S from then on, by the requests
that RocketMQ's slaves use. A master of ours tells between two of these rounds what has changed (`news`), and hears by
the next question for it that this slave has it, in memory and in its files. Tables whose number it knows already are
not read in a round, but for one every WHOLE_S: all of 10,000 topics are no small matter, for either side.

Offsets speak of what is in the log. The master's log is asked for its end behind them, and they are taken when this log
is safe up to there: a slave that became master before would pass over what it does not have.

    committed here, and further than at the master    committed there, too

Users and policies come from masters of ours alone, as `aerobee_access.copies` says; those of RocketMQ give none.

Invariants
- A table is taken whole, or not at all.
- Nothing is taken that is ahead of the log.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

import structlog

from aerobee_access.copies import AccessCopy
from aerobee_access.file import AccessFileDamaged
from aerobee_access.sealing import KeyFileError
from aerobee_broker.catalog.consumer_offsets import ConsumerOffsets
from aerobee_broker.catalog.groups import SubscriptionGroups
from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.followed_topics import FollowedTopics
from aerobee_broker.settings.config_files import AnyTable, ConfigFiles, PersistentTable, decode_config
from aerobee_proto.bodies import HaStatus
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import AerobeeError, FormatError, RequestError
from aerobee_proto.frames import Command
from aerobee_proto.ha_hello import NEWS_SINCE
from aerobee_proto.headers import UpdateConsumerOffsetHeader, WatchTablesHeader, ext_of
from aerobee_proto.names import GroupQueue
from aerobee_remoting.ends.client import RemotingClient
from aerobee_remoting.exchange.handlers import AnyRequest, Response
from aerobee_remoting.peers.errors import RemotingError
from aerobee_service.turns.slices import in_slices

__all__ = ["LINK_VERSION", "FollowedCatalog", "FollowedTable", "MetadataSync"]

log = structlog.get_logger()

LINK_VERSION: Final = "linkVersion"  # in the answer of a master of ours: of the handshake that its link knows
SYNC_S: Final = 3.0
WHOLE_S: Final = 60.0  # between two rounds that read what should be known
SOON_S: Final = 0.3  # between two rounds at least
COVERED_S: Final = 0.05  # between two looks whether the log has caught up with what was asked
LEVEL_S: Final = 0.002  # the same, when somebody waits for it
TIMEOUT_S: Final = 5.0
FORWARDED_MAX: Final = 1000  # offsets committed at the master in one round
NOTHING_TAKEN: Final = ("", -1, -1)


P = TypeVar("P")


class FollowedTable(PersistentTable[P], Protocol[P]):
    """A table with a file that a slave has of its master."""

    def follow(self, theirs: P) -> bool:
        """Become what the master's table is; False when it is that already."""
        ...


async def _follow(table: FollowedTable[P], content: Mapping[str, object]) -> bool:
    """Take what the master answered; whether anything has changed. FormatError: it is no such table."""
    return table.follow(await asyncio.to_thread(table.parse, content))


_Take = Callable[[Mapping[str, object]], Awaitable[bool]]
M = TypeVar("M")
D = TypeVar("D")


class _Safe(Protocol):
    @property
    def kept_offset(self) -> int: ...


class _End(Protocol):
    @property
    def end_offset(self) -> int: ...


WaitsFrom = Callable[[int, int], Awaitable[None]]


async def _nobody_asks(_: int, __: int) -> None:
    pass


class FollowedCatalog(NamedTuple, Generic[M]):
    """What there is for messages to come and go, as the master has it, and who may have them: `access` takes users and
    policies; None: this broker has none, or its own. `waits_from` is told what WaitingMark keeps."""

    topics: FollowedTopics
    groups: SubscriptionGroups
    request_modes: FollowedTable[M]
    offsets: ConsumerOffsets
    access: AccessCopy | None = None
    waits_from: WaitsFrom = _nobody_asks


class _News(NamedTuple):
    """What the master has answered. `taken` is what this slave has by its numbers when it has read the rest."""

    taken: tuple[str, int, int]  # life, tables, offsets
    end_offset: int
    done_below: int  # of timer messages, as WaitingMark says
    changes: Mapping[str, Mapping[int, int]] | None  # of offsets; None: they are to be read


class MetadataSync:
    """Keeps the tables of a slave as its master's are. `run` until it is cancelled, then `close`."""

    def __init__(
        self,
        catalog: FollowedCatalog[M],
        delay_offsets: FollowedTable[D],
        files: ConfigFiles,
        *,
        own_log: _End,
        safe: _Safe,
        linked: asyncio.Event,
        client: RemotingClient,
        member: int = 0,
    ) -> None:
        """`linked` is set while the link to the master works. `client` is this one's alone. `member` is this broker's
        number in the set."""
        self._member = member
        self._taken = NOTHING_TAKEN
        self._whole_at = -WHOLE_S  # when all tables were read last, by the loop's clock
        self._gives_news = False
        self._rounds = 0
        self._news_refused = False
        self._access = catalog.access
        self._waits_from = catalog.waits_from
        self._access_reported = ""
        self._in_access = asyncio.Lock()  # one question at a time
        self._offsets = catalog.offsets
        self._groups = catalog.groups
        self._topics = catalog.topics
        self._files = files
        self._log = own_log
        self._safe = safe
        self._linked = linked
        self._client = client
        self._prompt: dict[int, _Take] = {
            RequestCode.GET_ALL_TOPIC_CONFIG: catalog.topics.follow,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: partial(_follow, catalog.groups),
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: partial(_follow, catalog.request_modes),
        }
        self._delays: _Take = partial(_follow, delay_offsets)
        self._delay_table: AnyTable = delay_offsets
        self._prompt_tables: tuple[AnyTable, ...] = (
            catalog.topics.table,
            catalog.groups,
            catalog.request_modes,
        )
        self.master_addr = ""
        self.master_end_offset = 0  # as last heard
        self._reported = ""
        self._in_round = asyncio.Lock()
        self._soon = asyncio.Event()
        self._is_ours = False
        self.synced_at = 0.0  # by the loop's clock; 0.0: never

    def soon(self) -> None:
        """The log has something of a topic that nothing is known of here: the tables are read without a pause."""
        self._soon.set()

    def master_found(self, addr: str) -> None:
        """Nameservers say where the master answers requests."""
        self.master_addr = addr

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await self._linked.wait()
            self._soon.clear()
            if self.master_addr and await self._tried(self._round_and_news(self.master_addr)):
                continue
            await asyncio.sleep(min(SOON_S, SYNC_S) if self.master_addr else COVERED_S)
            if self.master_addr:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(SYNC_S):
                        await self._soon.wait()

    async def _tried(self, work: Awaitable[bool]) -> bool:
        """What it returns; False, and told once for each reason, when it has failed."""
        try:
            return await work
        except (RemotingError, FormatError, OSError) as failed:
            if self._reported != type(failed).__name__:
                self._reported = type(failed).__name__
                log.warning("replication.tables_not_read", master_addr=self.master_addr, reason=str(failed))
        return False

    async def _round_and_news(self, addr: str) -> bool:
        """Read everything, and follow the news of it until everything is to be read again; False: there are none."""
        loop = asyncio.get_running_loop()
        await self.round(addr)
        self._reported = ""
        self.synced_at = loop.time()
        until = self.synced_at + SYNC_S
        while self._gives_news:
            left_s, rounds = until - loop.time(), self._rounds
            if left_s <= 0 or addr != self.master_addr or not self._linked.is_set():
                return True
            news = await self._ask_news(addr, left_s)
            if news is None:
                break
            async with self._in_round:
                # What another round has read meanwhile is newer.
                is_taken = rounds != self._rounds or await self._take_news(addr, news)
            if not is_taken:
                await asyncio.sleep(SOON_S)
                return True
        return False

    async def level(self, end_offset: int) -> None:
        """Return when everything below this physical offset is as safe here as it is promised to be, and the tables are
        those that the master had after this call. RemotingError, FormatError as `round`."""
        if not self.master_addr:
            raise FormatError("where the master answers is not known: no nameserver has told it")
        while True:
            if self._safe.kept_offset >= end_offset:
                break
            await asyncio.sleep(LEVEL_S)
        await self.round(self.master_addr, end_offset)

    async def round(self, addr: str, end_offset: int | None = None) -> None:
        """Read everything once. RemotingError, FormatError: from there on nothing was taken. `end_offset` is where the
        master's log ends, where that need not be asked. One round at a time."""
        async with self._in_round:
            self._rounds += 1
            await self._round(addr, end_offset)

    async def _round(self, addr: str, end_offset: int | None) -> None:
        # What is read behind this is at least as new as its numbers.
        began = asyncio.get_running_loop().time()
        news = await self._ask_news(addr, 0.0) if self._gives_news else None
        is_known = news is not None and self._knows_tables(news) and began - self._whole_at < WHOLE_S
        is_whole = is_known or await self._read_prompt(addr)
        offsets = await self._read(addr, RequestCode.GET_ALL_CONSUMER_OFFSET)
        delays = await self._read(addr, RequestCode.GET_ALL_DELAY_OFFSET)
        end = await self.master_end(addr) if end_offset is None else end_offset
        self._topics.ends_at(end)
        if not is_known:
            is_whole &= await self._follow_access(addr)
        while self._safe.kept_offset < end:
            if not self._linked.is_set():
                return
            await asyncio.sleep(COVERED_S)
        if delays is not None and await self._delays(delays):
            await self._files.save(self._delay_table)
        if offsets is not None:
            parsed = await asyncio.to_thread(self._offsets.parse, offsets)
            further = await in_slices(self._offsets.following(parsed))
            await self._forward(addr, further)
        if news is not None and is_whole and offsets is not None:
            if not is_known:
                await self._files.save(*self._prompt_tables)
                self._whole_at = began
            self._taken = news.taken

    def _knows_tables(self, news: _News) -> bool:
        """Whether topics, groups, request modes, users and policies are here as the master has them."""
        return news.taken[:2] == self._taken[:2] and self._topics.is_settled

    async def _read_prompt(self, addr: str) -> bool:
        """Take topics, groups and request modes as they are at the master; False: it does not tell all of them."""
        is_whole = True
        for code, follow in self._prompt.items():
            content = await self._read(addr, code)
            if content is None:
                is_whole = False
            else:
                await follow(content)
        return is_whole

    # --- news -------------------------------------------------------------------------------------------------

    async def _ask_news(self, addr: str, hold_s: float) -> _News | None:
        """What the master has that was not taken; it waits for so long until there is something. None: it refuses."""
        life, tables, offsets = self._taken
        header = WatchTablesHeader(
            member=self._member, life=life, tables=tables, offsets=offsets, millis=round(hold_s * 1000)
        )
        answer = await self._client.request(
            addr, RequestCode.WATCH_TABLES, header, timeout=hold_s + TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            self._gives_news = False
            if not self._news_refused:
                log.warning(
                    "replication.news_refused", master_addr=addr, code=answer.code, reason=answer.remark
                )
            self._news_refused = True
            return None
        self._news_refused = False
        fields = answer.ext_fields or {}
        try:
            taken = fields["life"], int(fields["tables"]), int(fields["offsets"])
            end_offset, done_below = int(fields["endOffset"]), int(fields["doneBelow"])
            content = await asyncio.to_thread(decode_config, answer.body) if answer.body else None
        except (KeyError, ValueError) as broken:
            raise FormatError(f"the master's news cannot be read: {broken}") from broken
        changes = None if content is None else self._offsets.parse_changes(content)
        return _News(taken, end_offset, done_below, changes)

    async def _take_news(self, addr: str, news: _News) -> bool:
        """False: not taken, everything is to be read."""
        life, tables, _ = self._taken
        if news.taken[0] != life or news.changes is None:
            return False
        if news.taken[1] != tables:
            if not (await self._read_prompt(addr) and await self._follow_access(addr)):
                return False
            await self._files.save(*self._prompt_tables)
        while self._safe.kept_offset < news.end_offset:
            if not self._linked.is_set():
                return False
            await asyncio.sleep(LEVEL_S)
        self._offsets.follow_changes(news.changes)
        await self._waits_from(news.done_below, news.end_offset)
        self._taken = news.taken
        return True

    # --- users and policies -----------------------------------------------------------------------------------

    async def _follow_access(self, addr: str) -> bool:
        """Users and policies; RemotingError. What else is wrong is told once, and the other tables go on. Whether they
        are the master's, as far as they are to be."""
        if self._access is None or not self._is_ours:
            return True
        async with self._in_access:
            reason = await self._take_access(self._access, addr)
        if reason and reason != self._access_reported:
            log.error("replication.access_not_taken", master_addr=addr, reason=reason)
        self._access_reported = reason
        return not reason

    async def _take_access(self, access: AccessCopy, addr: str) -> str:
        """Why users and policies cannot be taken; empty when they are."""
        answer = await self._client.request(
            addr, RequestCode.GET_ALL_ACCESS, access.question(), timeout=TIMEOUT_S
        )
        if answer.code != ResponseCode.SUCCESS:
            return f"code {answer.code}, {answer.remark}"
        try:
            if await access.take(answer.ext_fields or {}, answer.body):
                log.info("replication.access_taken", master_addr=addr)
        except (FormatError, KeyFileError, AccessFileDamaged, OSError) as failed:
            return str(failed)
        return ""

    async def ask_master(self, request: AnyRequest) -> Response | None:
        """What the master answers to a change of users and policies, which are here, too, when this returns. None:
        those here are not the master's. RequestError when it cannot be asked."""
        addr, is_linked = self.master_addr, self._linked.is_set()
        if self._access is None or (is_linked and not self._is_ours):
            return None
        if not (addr and is_linked):
            raise RequestError(
                ResponseCode.NO_PERMISSION,
                "this broker is a slave; users and policies are its master's, which is not there at the moment",
            )
        try:
            answer = await self._client.request(
                addr, request.code, ext_of(request.header), request.body, timeout=TIMEOUT_S
            )
            if answer.code == ResponseCode.SUCCESS:
                await self._follow_access(addr)
        except RemotingError as failed:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the master was asked: {failed}") from failed
        return Response(answer.code, answer.remark, body=answer.body)

    async def _read(self, addr: str, code: int) -> Mapping[str, object] | None:
        """What the master answers, as of a file; None when it has nothing to say."""
        answer = await self._client.request(addr, code, timeout=TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS or not answer.body:
            log.debug("replication.table_refused", code=int(code), answered=answer.code, reason=answer.remark)
            return None
        try:
            return await asyncio.to_thread(decode_config, answer.body)
        except ValueError as broken:
            raise FormatError(f"the answer to request {int(code)} cannot be read: {broken}") from broken

    async def master_end(self, addr: str) -> int:
        """Where the master's log ends. FormatError when it does not say."""
        answer = await self._client.request(addr, RequestCode.GET_BROKER_HA_STATUS, timeout=TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise FormatError(f"{addr} does not say how far it is: code {answer.code}, {answer.remark}")
        version = (answer.ext_fields or {}).get(LINK_VERSION)
        self._is_ours = version is not None
        self._gives_news = version is not None and version.isdigit() and int(version) >= NEWS_SINCE
        status = HaStatus.from_stranger(answer.body)
        if not status.master:
            raise FormatError(f"{addr} is no master")
        self.master_end_offset = status.master_commit_log_max_offset
        return self.master_end_offset

    async def check_master(self) -> bool:
        """Whether the master is one of ours, as far as it has ever said. LinkFault when one of RocketMQ has a log that
        is shorter than this one: it has lost what this slave has. Ours tell more in the handshake of the link.

        Its topics are read, too: the queues of what comes are made by them.
        """
        if not self.master_addr:
            return self._is_ours
        own_end = self._log.end_offset
        try:
            end = await self.master_end(self.master_addr)
            content = await self._read(self.master_addr, RequestCode.GET_ALL_TOPIC_CONFIG)
            if content is not None:
                await self._topics.follow(content)
        except AerobeeError as failed:
            log.debug("replication.master_not_asked", master_addr=self.master_addr, reason=str(failed))
            return self._is_ours
        if end < own_end and not self._is_ours:
            raise LinkFault(
                "ahead",
                f"the log of the master {self.master_addr} ends at {end}, this one at {own_end}: "
                "the master has lost what this slave has",
                "decide which of the two logs is the right one; docs/replication.md says how",
            )
        return self._is_ours

    async def _forward(self, addr: str, further: list[tuple[GroupQueue, int]]) -> None:
        """Let the master have what groups have committed here, and those groups that were made by use here alone."""
        for queue, offset in further[:FORWARDED_MAX]:
            answer = await self._commit(addr, queue, offset)
            group = self._groups.get(queue.group)
            if answer.code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST and group is not None:
                code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
                await self._client.request(addr, code, body=group.to_bytes(), timeout=TIMEOUT_S)
                answer = await self._commit(addr, queue, offset)
            if answer.code == ResponseCode.SUCCESS:
                self._offsets.forwarded(queue, offset)

    async def _commit(self, addr: str, queue: GroupQueue, offset: int) -> Command:
        header = UpdateConsumerOffsetHeader(
            consumer_group=queue.group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset
        )
        return await self._client.request(addr, RequestCode.UPDATE_CONSUMER_OFFSET, header, timeout=TIMEOUT_S)

    async def close(self) -> None:
        """Hang up."""
        await self._client.close()
