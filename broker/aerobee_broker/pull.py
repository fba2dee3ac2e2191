"""Pulls: check, read, answer or hold.

Touches  the store through `Services`, connections to answer on.

The answer to a found pull is written out by hand around the stored bytes, which leave as they lie in the log.
A pull that finds nothing is held and run again when a message that its filter lets through becomes readable, or
when its time is over; it is not held twice. While it is held a filter by properties looks at each new message once.
"""

from typing import Any, Final

from aerobee_broker.consumers import Subscription
from aerobee_broker.each_turn import EachTurn
from aerobee_broker.filters import EVERYTHING, Filter, check_type
from aerobee_broker.held_pulls import HeldPull, HeldPulls
from aerobee_broker.refusals import no_such_queue
from aerobee_broker.services import Services
from aerobee_proto.codes import Perm, PullFlag, RequestCode, ResponseCode
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_proto.frames import CODEC_JSON, FLAG_RESPONSE, Command, encode_command, encode_frame
from aerobee_proto.headers import PullMessageHeader
from aerobee_remoting.connection import Connection
from aerobee_remoting.handlers import HandlerTable, Permission, Request, Response
from aerobee_store.consume_queue import tags_of
from aerobee_store.errors import StoreError
from aerobee_store.get_message import GetResult, GetStatus

__all__ = ["PullProcessor"]

HOLD_MS_MAX: Final = 120_000  # longer wishes are cut to this; official clients ask for 15 to 30 s
MESSAGE_COUNT_MAX: Final = 1024
# Held pulls that are run again in one turn of the event loop; one reads and answers in 50 us.
WAKE_MAX: Final = 256
PROBE_MAX: Final = 128  # filters that look at new messages in one turn; one takes 20 us for a message
BODY_SIZE_MAX: Final = 134_217_728  # the official bound; what the store sends at once is configured there
FORBIDDEN_BROKER, FORBIDDEN_GROUP, FORBIDDEN_TOPIC, FORBIDDEN_BROADCAST, FORBIDDEN_SUBSCRIPTION = range(1, 6)

RESPONSE_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_NOT_FOUND,
}
NOTHING_MATCHED: Final = frozenset({GetStatus.NO_MATCHED_MESSAGE, GetStatus.OFFSET_OVERFLOW_ONE})
EMPTY_QUEUE: Final = frozenset({GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE})


_Work = tuple[Request, Filter]


class _Forbidden(RequestError):
    """A refusal that says in a field of its own who forbids."""

    def __init__(self, kind: int, remark: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.kind = kind


class PullProcessor:
    """Handlers of PULL_MESSAGE and LITE_PULL_MESSAGE, and the pulls that are held."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._filters = services.filters
        self.held: HeldPulls[_Work] = HeldPulls(
            services.config.max_held_pulls,
            owner_max=services.config.max_held_pulls_per_connection,
            is_gone=lambda owner: isinstance(owner, Connection) and owner.is_closed,
            memory=services.memory,
        )
        self._to_probe: dict[HeldPull[_Work], int] = {}  # -> the end of its queue, as far as that was told
        self._probing = EachTurn(self._probe, PROBE_MAX)
        self._woken = EachTurn(self._run, WAKE_MAX)
        services.offsets.on_reset.append(self.group_reset)

    def register(self, table: HandlerTable) -> None:
        for code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE):
            table.register(code, self.on_pull, permission=Permission.SUBSCRIBE, header=PullMessageHeader)

    def on_pull(self, request: Request) -> Response | None:
        """One pull, first pass."""
        try:
            wanted = self._check(request)
        except _Forbidden as refused:
            return Response(refused.code, refused.remark, ext={"forbiddenType": str(refused.kind)})
        header = request.header
        group, topic, queue_id = header.consumer_group, header.topic, header.queue_id
        services = self._services
        if header.sys_flag & PullFlag.COMMIT_OFFSET:
            self._commit(request)
        reset = services.offsets.take_reset(group, topic, queue_id)
        if reset is not None:
            return self._moved(request, reset)
        result = self._read(header, header.queue_offset, wanted)
        if result is None:
            return Response(
                ResponseCode.SYSTEM_ERROR, "the store is not readable: it is starting or stopping"
            )
        code = self._code(result, header.queue_offset)
        if code == ResponseCode.PULL_NOT_FOUND and header.sys_flag & PullFlag.SUSPEND:
            return self._hold(request, header, wanted, result)
        self._answer(request, header, result, code)
        return None

    def _commit(self, request: Request) -> None:
        """Take the offset that a pull carries, unless the same peer has committed a later one meanwhile."""
        header, offsets = request.header, self._services.offsets
        queue = header.consumer_group, header.topic, header.queue_id
        if request.connection.was_overtaken and (offsets.get(*queue) or 0) > header.commit_offset:
            return
        offsets.commit(*queue, header.commit_offset)

    # --- checks -----------------------------------------------------------------------------------------------

    def _check(self, request: Request) -> Filter:
        """All checks in the official order; the filter of a pull that may go on."""
        header = request.header
        group_name, topic_name = header.consumer_group, header.topic
        services = self._services
        config = services.config
        if not config.broker_permission & Perm.READ:
            raise _Forbidden(FORBIDDEN_BROKER, f"broker {config.broker_name} may not be read from")
        if request.code == RequestCode.LITE_PULL_MESSAGE and not config.lite_pull_message_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, "lite pull is turned off (litePullMessageEnable)")
        group = services.groups.require(group_name)
        if not group.consume_enable:
            raise _Forbidden(FORBIDDEN_GROUP, f"group {group_name} may not consume: consumeEnable is false")
        topic = services.topics.require(topic_name)
        if not topic.perm & Perm.READ:
            raise _Forbidden(
                FORBIDDEN_TOPIC, f"topic {topic_name} may not be read from: its permission is {topic.perm}"
            )
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise no_such_queue(topic_name, header.queue_id, topic.read_queue_nums)
        if header.max_msg_nums < 1:
            raise RequestError(
                ResponseCode.INVALID_PARAMETER, f"maxMsgNums {header.max_msg_nums} is not positive"
            )
        if header.sys_flag & PullFlag.SUBSCRIPTION:
            if check_type(header.expression_type, sql_enabled=config.enable_property_filter):
                return self._filters.tags(header.subscription)
            return self._filters.sql(header.subscription)
        return self._subscribed(header, group)

    def _subscribed(self, header: Any, group: Any) -> Filter:
        """The filter that the group registered by heartbeat."""
        services = self._services
        name, topic = header.consumer_group, header.topic
        registered = services.consumers.get(name)
        if registered is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"no member of group {name} is registered; send a heartbeat",
            )
        if registered.is_broadcasting and not group.consume_broadcast_enable:
            raise _Forbidden(FORBIDDEN_BROADCAST, f"group {name} may not consume by broadcasting")
        if services.groups.is_forbidden(name, topic):
            raise _Forbidden(FORBIDDEN_SUBSCRIPTION, f"group {name} may not read topic {topic}")
        subscription = registered.subscriptions.get(topic)
        if subscription is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_EXIST, f"group {name} has not subscribed to topic {topic}"
            )
        if subscription.version < header.sub_version:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the subscription of group {name} to topic {topic} is older here than the pull's",
            )
        if check_type(subscription.expression_type, sql_enabled=services.config.enable_property_filter):
            return subscription.tag_filter
        return self._registered_sql(name, subscription)

    def _registered_sql(self, group: str, subscription: Subscription) -> Filter:
        """The SQL92 filter of a heartbeat. It is compiled here, so a heartbeat with many of them holds up nobody."""
        try:
            wanted = self._filters.sql(subscription.data.sub_string)
        except RequestError as broken:
            older = subscription.compiled_version is not None
            raise RequestError(
                ResponseCode.FILTER_DATA_NOT_LATEST if older else ResponseCode.FILTER_DATA_NOT_EXIST,
                f"group {group} registered a filter for topic {subscription.data.topic} that does not compile"
                f"{', after an older one that does' if older else ''}: {broken.remark}",
            ) from broken
        subscription.compiled_version = subscription.version
        return wanted

    # --- reading ----------------------------------------------------------------------------------------------

    def _read(self, header: Any, offset: int, wanted: Filter) -> GetResult | None:
        count = min(header.max_msg_nums, MESSAGE_COUNT_MAX)
        return self._services.store.get_message(
            header.consumer_group,
            header.topic,
            header.queue_id,
            offset,
            count,
            BODY_SIZE_MAX,
            wanted.tag_hashes,
            wanted.selector,
        )

    def _code(self, result: GetResult, asked_offset: int) -> int:
        if result.status in EMPTY_QUEUE and asked_offset != 0:
            return ResponseCode.PULL_OFFSET_MOVED
        return RESPONSE_CODES[result.status]

    def _hold(self, request: Request, header: Any, wanted: Filter, result: GetResult) -> Response | None:
        config = self._services.config
        wish_ms = (
            header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills
        )
        if wish_ms <= 0:
            self._answer(request, header, result, ResponseCode.PULL_NOT_FOUND)
            return None
        _shed(request)
        pull = HeldPull(
            (header.topic, header.queue_id),
            header.queue_offset,
            wanted.tag_hashes,
            self._services.clock() + min(wish_ms, HOLD_MS_MAX),
            request.connection,
            (request, wanted),
            None if wanted.selector is None else lambda offset: self._none_until(header, offset, wanted),
            None if wanted is EVERYTHING else (wanted, wanted.size),
        )
        if self.held.hold(pull):
            return None
        of_peer = self.held.count_of(request.connection)
        limit = "maxHeldPulls" if self.held.is_full else "maxHeldPullsPerConnection"
        raise LimitReached(
            ResponseCode.SYSTEM_BUSY,
            f"{len(self.held)} pulls are held already, {of_peer} of them for this connection; try again later",
            limit,
        )

    def wake(self, topic: str, queue_id: int, max_offset: int, entries: bytes) -> None:
        """Run the held pulls that new readable messages are for; `entries` as packed in the queue."""
        if not self.held.waits_in(topic, queue_id):
            return
        self._woken.add(self.held.ready(topic, queue_id, max_offset, tags_of(entries)))
        to_probe = self.held.to_probe(topic, queue_id)
        if to_probe:
            new = [pull for pull in to_probe if pull not in self._to_probe]
            self._to_probe.update(dict.fromkeys(to_probe, max_offset))
            self._probing.add(new)

    def _probe(self, pull: HeldPull[_Work]) -> None:
        """Let a pull look at what arrived."""
        if self.held.probe(pull, self._to_probe.pop(pull)):
            self._run_again(pull)

    def group_reset(self, group: str, topic: str, queue_id: int) -> None:
        """Tell a member that waits in a queue at once where the group goes on."""
        for pull in self.held.take(topic, queue_id, lambda work: _group_of(work) == group):
            offset = self._services.offsets.take_reset(group, topic, queue_id)
            if offset is None:
                self._run_again(pull)
            else:
                request, _ = pull.work
                request.respond(self._moved(request, offset))

    def expire(self) -> None:
        """Answer the held pulls whose time is over."""
        self._woken.add(self.held.expired(self._services.clock()))

    def _run(self, pull: HeldPull[_Work]) -> None:
        """Run a pull that has left the table."""
        if not pull.work[0].connection.is_closed:
            self._run_again(pull)

    def _none_until(self, header: Any, offset: int, wanted: Filter) -> int | None:
        """Where to look next when no message from `offset` on matches; None when the pull has to be run again."""
        result = self._read(header, offset, wanted)
        if result is None or result.status not in NOTHING_MATCHED:
            return None
        return result.next_offset

    def _run_again(self, pull: HeldPull[_Work]) -> None:
        request, wanted = pull.work
        header = request.header
        if request.connection.is_congested:
            # One message may wake thousands of pulls: what they find is not piled up for a peer that does not read.
            request.respond(self._retry(pull.offset))
            return
        try:
            result = self._read(header, pull.offset, wanted)
        except (OSError, StoreError) as failed:  # of this queue alone: nobody else is to suffer
            request.fail(failed)
            return
        if result is None:
            request.respond(Response(ResponseCode.SYSTEM_ERROR, "the store is stopping"))
            return
        self._answer(request, header, result, self._code(result, pull.offset))

    # --- answers ----------------------------------------------------------------------------------------------

    def _retry(self, offset: int) -> Response:
        """Ask again for the same."""
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": "0",
            "maxOffset": str(offset),
        }
        return Response(ResponseCode.PULL_RETRY_IMMEDIATELY, "too much waits to be read", ext=ext)

    def _moved(self, request: Request, offset: int) -> Response:
        header = request.header
        store = self._services.store
        ext = {
            "suggestWhichBrokerId": "0",
            "nextBeginOffset": str(offset),
            "minOffset": str(store.min_offset(header.topic, header.queue_id)),
            "maxOffset": str(store.max_offset(header.topic, header.queue_id)),
        }
        return Response(ResponseCode.PULL_OFFSET_MOVED, "OFFSET_RESET", ext=ext)

    def _answer(self, request: Request, header: Any, result: GetResult, code: int) -> None:
        services = self._services
        services.offsets.note_pull(header.consumer_group, header.topic, header.queue_id, result.next_offset)
        if result.count:
            services.stats.got(header.topic, header.consumer_group, result.count, result.size)
        else:
            services.stats.missed()
        if request.oneway:
            return
        suggested = self._suggested_broker(header.consumer_group, result)
        if request.codec == CODEC_JSON:
            text = (
                f'{{"code":{int(code)},"extFields":{{"suggestWhichBrokerId":"{suggested}","groupSysFlag":"0",'
                f'"nextBeginOffset":"{result.next_offset}","maxOffset":"{result.max_offset}",'
                f'"minOffset":"{result.min_offset}","topicSysFlag":"0"}},"flag":1,"language":"PYTHON",'
                f'"opaque":{request.opaque},"remark":"{result.status.name}",'
                f'"serializeTypeCurrentRPC":"JSON","version":479}}'
            )
            frame = encode_frame(CODEC_JSON, text.encode(), b"".join(result.body))
        else:
            frame = self._encode(request, result, code, suggested)
        request.connection.write_now(frame)

    def _encode(self, request: Request, result: GetResult, code: int, suggested: int) -> bytes:
        ext = {
            "suggestWhichBrokerId": str(suggested),
            "groupSysFlag": "0",
            "nextBeginOffset": str(result.next_offset),
            "maxOffset": str(result.max_offset),
            "minOffset": str(result.min_offset),
            "topicSysFlag": "0",
        }
        return encode_command(
            Command(
                int(code),
                opaque=request.opaque,
                flag=FLAG_RESPONSE,
                remark=result.status.name,
                ext_fields=ext,
                body=b"".join(result.body),
                codec=request.codec,
            )
        )

    def _suggested_broker(self, group_name: str, result: GetResult) -> int:
        """Which broker id to read from next: a slave only when that is turned on and the reader is far behind."""
        if not self._services.config.slave_read_enable:
            return 0
        group = self._services.groups.get(group_name)
        if group is None:
            return 0
        return group.which_broker_when_consume_slowly if result.suggest_slave else group.broker_id


def _shed(request: Request) -> None:
    """Keep of a pull that waits what it needs when it is run again: its filter is compiled by now."""
    request.shed()
    header = request.header
    header.subscription = header.expression_type = header.proxy_froward_client_id = header.bname = None


def _group_of(work: _Work) -> str:
    group: str = work[0].header.consumer_group
    return group
