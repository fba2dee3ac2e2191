"""The gate of a server with the access control of RocketMQ 4.x.

Touches  nothing.

In this order: a global white address passes; the account is known; its own white address passes; the signature is its
own; what only administrators may; permissions of the topics and groups that the request names. Refusals have code 1,
and the text that official tools look for.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from weakref import WeakKeyDictionary

from aerobee_access.audit import AuditLog
from aerobee_access.freshness import Freshness, NotFresh
from aerobee_access.judging import Judgement, judging_by
from aerobee_access.plain_acl import Account, Perm, PlainAcl
from aerobee_access.refusals import Refusals
from aerobee_access.signature import ACCESS_KEY, fields_of, signed_with
from aerobee_proto.bodies import HeartbeatData
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.names import RETRY_PREFIX, TRACE_TOPIC, is_retry_topic
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.gate import Asked, Gate, Judging, RefusedSlowly, Row
from aerobee_remoting.exchange.needs import Kind, Need
from aerobee_remoting.peers.peer import Peer
from aerobee_service.logs.event_log import event_logger

__all__ = ["ADMIN_CODES", "PlainGate"]

log = event_logger("aerobee.access")

SHOWN_CHARS_MAX: Final = 255  # of a name that a stranger sent

REMARK: Final = "org.apache.rocketmq.acl.common.AclException: "
# The first five are RocketMQ's. It lets any account change accounts, so any could make itself an administrator. What it
# does not serve, and changes as much as what needs an administrator (18 as 17, 225 and 401 as 200, our own codes from
# 31990 on a whole broker), needs one, too.
ADMIN_CODES: Final = frozenset(
    {17, 25, 200, 207, 215, 50, 51, 53, 54, 18, 225, 401, 31990, 31991, 31992, 31993, 31994}
)
OLD_SIGNATURE: Final = 0  # of that version; one field is never part of it
# Code -> the fields that name a topic and a group, and what is needed there.
SENDS: Final = {10: ("topic", "group"), 310: ("b", "a"), 370: ("topic", "producerGroup")}
GROUPS: Final = {36: "group", 35: "consumerGroup", 38: "consumerGroup"}
# 4.9 serves the first two.
READS: Final = frozenset({11, 15, 361, 200050, 200051, 200052, 200053, 200054})
NOBODY: Final = b"nobody has this secret"
Needs = tuple[dict[str, Perm], dict[str, Perm]]


class _NoAccount(RequestError):
    """Who asks is not known, or could not prove it; `reason` is one of REASONS, `fact` what the log says instead of the
    remark: a stranger is not told which accounts there are."""

    def __init__(self, reason: str, text: str, fact: str = "") -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, REMARK + text)
        self.reason = reason
        self.fact = fact or text


class PlainGate(Gate):
    """Lets in whom the accounts let in."""

    def __init__(
        self,
        accounts: Callable[[], PlainAcl],
        *,
        trusts: Callable[[Peer], bool] = lambda _: False,
        refusals: Refusals | None = None,
        audit: AuditLog | None = None,
        freshness: Freshness | None = None,
    ) -> None:
        """`accounts` gives those that are in force; the others are as for `AccessGate`."""
        self._accounts = accounts
        self._trusts = trusts
        self._refusals = refusals
        self._audit = audit
        self._freshness = freshness
        # Kept for each connection while the accounts stay.
        self._judgements: WeakKeyDictionary[Peer, tuple[PlainAcl, dict[Asked, Judgement]]] = (
            WeakKeyDictionary()
        )

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        if self._trusts(caller):
            return
        try:
            self._admit(caller, row.code, request)
        except RequestError as refused:
            raise self._refusal(caller, row, request, refused) from None

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        """4.9 asks for nothing but what the request names. Ours does not show messages that nobody may read."""
        try:
            self._admit_found(caller, request, needs)
        except RequestError as refused:
            raise self._refusal(caller, row, request, refused) from None

    def _admit_found(self, caller: Peer, request: AnyIncoming, needs: Sequence[Need]) -> None:
        acl, fields = self._accounts(), fields_of(request.frame) or {}
        if self._trusts(caller) or acl.is_white(caller.peer_host):
            return
        account = acl.accounts.get(fields.get(ACCESS_KEY, ""))
        if account is None:
            raise _refused("No accessKey is configured")
        topics = {need.name: Perm.PUB | Perm.SUB for need in needs if need.kind is Kind.TOPIC}
        groups = {need.name: Perm.SUB for need in needs if need.kind is Kind.GROUP}
        reason = account.refusal(topics, groups)
        if reason:
            raise _refused(reason)

    def greeting(self, caller: Peer) -> Mapping[str, str]:
        return {} if self._freshness is None else self._freshness.greeting(caller)

    def lets_all(self, caller: Peer) -> bool:
        return self._trusts(caller) or self._accounts().is_white(caller.peer_host)

    def judging(self, caller: Peer, rows: Mapping[int, Row]) -> Judging:
        acl, address = self._accounts(), caller.peer_host
        kept = self._judgements.get(caller)
        if kept is None or kept[0] is not acl:
            kept = self._judgements[caller] = acl, {}
        numbers = self._freshness.of(caller) if self._freshness is not None else None
        return judging_by(kept[1], lambda asked: _judgement(acl, address, asked), self._freshness, numbers)

    def _admit(self, caller: Peer, code: int, request: AnyIncoming) -> None:
        address = caller.peer_host
        if code == RequestCode.GET_CODECS:
            return
        acl = self._accounts()
        if acl.is_white(address):
            return
        fields = fields_of(request.frame) or {}
        name = fields.get(ACCESS_KEY)
        if name is None:
            raise _NoAccount("unsigned", "No accessKey is configured")
        account = acl.accounts.get(name)
        # First, and for an account that is not there as well: how long it takes says nothing.
        secret = account.secret_key.encode() if account is not None else NOBODY
        content = signed_with(secret, fields, OLD_SIGNATURE, request.body)
        if account is None:
            shown = name[:SHOWN_CHARS_MAX]
            raise _NoAccount(
                "unknown", f"Check signature failed for accessKey={shown}", f"No acl config for {shown}"
            )
        if account.white_address and _matches(account.white_address, address):
            return
        if content is None:
            raise _NoAccount("signature", f"Check signature failed for accessKey={name[:SHOWN_CHARS_MAX]}")
        if self._freshness is not None:
            try:
                self._freshness.check(self._freshness.of(caller), name, code, content)
            except NotFresh as why:
                raise _NoAccount("replay", str(why)) from None
        if code in ADMIN_CODES and not account.is_admin:
            raise _refused(f"Need admin permission for request code={code}, but accessKey={name} is not")
        reason = _reason(account, *_needs(code, fields, request))
        if reason:
            raise _refused(reason)

    def _refusal(self, caller: Peer, row: Row, request: AnyIncoming, refused: RequestError) -> RequestError:
        fact = refused.fact if isinstance(refused, _NoAccount) else refused.remark.removeprefix(REMARK)
        if self._audit is not None:
            fields = fields_of(request.frame) or {}
            self._audit.write(
                "refused",
                user=fields.get(ACCESS_KEY, ""),
                peer=caller.peer,
                code=row.code,
                request=row.name,
                reason=fact,
            )
        refusals = self._refusals
        if not isinstance(refused, _NoAccount):
            if refusals is not None:
                refusals.count("rights" if refused.remark.startswith(REMARK) else "request")
            return refused
        log.warning("access.refused", peer=caller.peer, code=row.code, reason=fact)
        delay_s = refusals.refused(caller.peer_host, refused.reason) if refusals is not None else 0.0
        return RefusedSlowly(refused.code, refused.remark, delay_s) if delay_s else refused


def _reason(account: Account, topics: dict[str, Perm], groups: dict[str, Perm]) -> str:
    """Why these needs are not granted; empty when they are. Traces are taken from every account."""
    if topics.get(TRACE_TOPIC) == Perm.PUB and not groups and len(topics) == 1:
        return ""
    return account.refusal(topics, groups)


def _judgement(acl: PlainAcl, address: str, asked: Asked) -> Judgement:
    """As `PlainGate._admit`, for a send or a pull; no to a send to a retry topic, whose group may be named by a field
    of its own."""
    code, access_key, topic_name, group_name = asked
    name = access_key.decode() if access_key is not None else ""
    account = acl.accounts.get(name)
    if account is None:
        return Judgement(name, NOBODY, is_let_in=False)
    if account.white_address and _matches(account.white_address, address):
        return Judgement(name, None, is_let_in=True)
    topic = topic_name.decode()
    topics: dict[str, Perm] = {}
    groups: dict[str, Perm] = {}
    is_clear = True
    if code in READS:
        _reads(topic, topics, groups)
        _reads_for(group_name.decode(), groups)
    else:
        is_clear = not is_retry_topic(topic)
        if code in SENDS:
            topics[topic] = Perm.PUB
    return Judgement(name, account.secret_key.encode(), is_clear and not _reason(account, topics, groups))


def _matches(pattern: str, address: str) -> bool:
    return PlainAcl(white_addresses=(pattern,)).is_white(address)


def _needs(code: int, fields: dict[str, str], request: AnyIncoming) -> Needs:
    """Topics and groups that a request names, with what is needed there; a group may be named by its retry topic."""
    topics: dict[str, Perm] = {}
    groups: dict[str, Perm] = {}
    if code in SENDS:
        topic_field, group_field = SENDS[code]
        topic = fields.get(topic_field)
        if topic is not None and is_retry_topic(topic):
            groups[_group(fields.get(group_field) or topic)] = Perm.SUB
        elif topic is not None:
            topics[topic] = Perm.PUB
    elif code in GROUPS:
        _reads_for(fields.get(GROUPS[code]), groups)
    elif code in READS or code == RequestCode.QUERY_MESSAGE:
        _reads(fields.get("topic"), topics, groups)
        if code in READS:
            _reads_for(fields.get("consumerGroup"), groups)
    elif code == RequestCode.HEART_BEAT and request.body:
        for consumer in request.read(HeartbeatData).consumer_data_set:
            _reads_for(consumer.group_name, groups)
            for subscription in consumer.subscription_data_set:
                _reads(subscription.topic, topics, groups)
    return topics, groups


def _reads(topic: str | None, topics: dict[str, Perm], groups: dict[str, Perm]) -> None:
    """What is not named at all needs nothing; the handler finds out."""
    if topic is not None and is_retry_topic(topic):
        groups[_group(topic)] = Perm.SUB
    elif topic is not None:
        topics[topic] = Perm.SUB


def _reads_for(group: str | None, groups: dict[str, Perm]) -> None:
    if group is not None:
        groups[_group(group)] = Perm.SUB


def _group(name: str) -> str:
    return name.removeprefix(RETRY_PREFIX)


def _refused(text: str) -> RequestError:
    return RequestError(ResponseCode.SYSTEM_ERROR, REMARK + text)
