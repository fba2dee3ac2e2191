"""The gate of a server with access control: who asks, and may they?

Touches  nothing.

    authenticate    the AccessKey names a user that is enabled, and the signature was made with its secret; or there is
                    no AccessKey, and the connection has shown a certificate, verified, that names such a user
    authorize       what the request needs (`needs`, declared with its code) is granted by the policies of the user

The signature of every request is checked: it says who sent these bytes, and nothing else does. A request that
says when it was signed, and for which connection, is let in once (`freshness`). What a user is allowed
is kept for each connection until users or policies change, so a granted send costs the signature and a look-up. Sends
and pulls that nobody has read as requests are judged by what is kept alone: the first of each kind is admitted the
usual way.

Invariants
- Whatever fails refuses; nobody is let in by an error.
- A decision that is kept was made with the users and policies that are in force (`AccessTable.revision`).
- What is kept for one connection has a bound, and goes with the connection.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final, NamedTuple
from weakref import WeakKeyDictionary

from aerobee_access.audit import AuditLog
from aerobee_access.decision import Verdict, decide
from aerobee_access.freshness import Freshness, NotFresh, Numbers
from aerobee_access.judging import Judgement, judging_by
from aerobee_access.policies import Action
from aerobee_access.refusals import Refusals
from aerobee_access.signature import ACCESS_KEY, fields_of, signed_with
from aerobee_access.table import AccessTable
from aerobee_access.users import NAME_CHARS_MAX, User
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_proto.errors import RequestError
from aerobee_proto.requests import AnyIncoming
from aerobee_remoting.exchange.gate import Asked, Gate, Judging, Refused, RefusedSlowly, Row
from aerobee_remoting.exchange.needs import CREATE, DELETE, GET, UPDATE, Kind, Need, Open
from aerobee_remoting.peers.peer import Peer
from aerobee_service.logs.event_log import event_logger

__all__ = ["AccessGate", "AccessRules", "administers"]

log = event_logger("aerobee.access")

FIELDS_MAX: Final = 1_024  # of a signed request
_NAMES: Final = {int(code): code.name for code in RequestCode}
CHANGES: Final = frozenset({CREATE, UPDATE, DELETE})
GRANTED_MAX: Final = 4_096  # decisions kept for one connection; at the bound they are made anew
# What is kept for a connection whatever others have, of decisions and judgements; and all that is kept besides, for all
# of them: at that bound further ones are made anew each time.
KEPT_FREE_MAX: Final = 8
KEPT_MAX: Final = 200_000
KEPT_SIZE: Final = 256  # bytes of one, with its names
COUNTED_AGAIN: Final = 10_000  # that were not kept, until it is looked what connections are gone
Naming = Callable[[object], object]

NO_USER: Final = b"nobody has this secret"
NOT_SIGNED: Final = "check signature failed."
UNFIT: Final = "Authorization failed. Please verify your access rights and try again."


@dataclass(slots=True, frozen=True)
class AccessRules:
    """What of access control is in force. `as_official`: where 5.3.3 is wrong, too."""

    cluster_name: str
    authentication: bool = False
    authorization: bool = False
    unsigned_codes: frozenset[int] = frozenset()
    free_codes: frozenset[int] = frozenset()
    as_official: bool = False


@dataclass(slots=True, eq=False)
class _Known:
    """What is known of one connection."""

    revision: int
    numbers: Numbers | None  # of its requests, where they are looked at
    # User, code and what the request names -> granted.
    granted: set[tuple[str, int, object]] = field(default_factory=set)
    judgements: dict[Asked, Judgement] = field(default_factory=dict)


class _Named(NamedTuple):
    """The header fields of a send or a pull that policies are about."""

    topic: str
    producer_group: str
    consumer_group: str  # the same: a request has one of them


class _NoUser(RequestError):
    """Who asks is not known, or could not prove it; `reason` is one of REASONS, `fact` what the log says instead of the
    remark: a stranger is not told which users there are."""

    def __init__(self, reason: str, remark: str, fact: str = "") -> None:
        super().__init__(ResponseCode.NO_PERMISSION, remark)
        self.reason = reason
        self.fact = fact or remark


class AccessGate(Gate):
    """Lets in who has signed and may."""

    def __init__(
        self,
        table: AccessTable,
        rules: AccessRules,
        *,
        trusts: Callable[[Peer], bool] = lambda _: False,
        refusals: Refusals | None = None,
        audit: AuditLog | None = None,
        freshness: Freshness | None = None,
    ) -> None:
        """`trusts`: who is a part of this program, and may do what its makers let it. `refusals` says how long the
        answer to who is no user has to wait, `freshness` whether a request was seen before."""
        self._refusals = refusals
        self._freshness = freshness
        self._audit = audit
        self._trusts = trusts
        self._table = table
        self._rules = rules
        self._known: WeakKeyDictionary[Peer, _Known] = WeakKeyDictionary()
        self._naming: dict[int, Naming | None] = {}  # code -> the fields by which a request is granted
        # Of what is kept that which counts, and more: connections that have gone are still in it. And since when.
        self._counted = 0
        self._not_kept = 0

    @property
    def is_on(self) -> bool:
        """Whether anything is checked."""
        return self._rules.authentication or self._rules.authorization

    @property
    def kept(self) -> int:
        """Decisions that are kept, for all connections."""
        return sum(len(known.granted) for known in self._known.values())

    @property
    def judgements_kept(self) -> int:
        """What is kept of requests that nobody reads as such, for all connections."""
        return sum(len(known.judgements) for known in self._known.values())

    def _may_keep(self, known: _Known) -> bool:
        """Whether there is room for one more decision or judgement of this connection."""
        if len(known.granted) + len(known.judgements) < KEPT_FREE_MAX:
            return True
        if self._counted >= KEPT_MAX:
            self._not_kept += 1
            if self._not_kept % COUNTED_AGAIN:
                return False
            each = (len(one.granted) + len(one.judgements) for one in self._known.values())
            self._counted = sum(max(count - KEPT_FREE_MAX, 0) for count in each)
            if self._counted >= KEPT_MAX:
                return False
        self._counted += 1
        return True

    def admit(self, caller: Peer, row: Row, request: AnyIncoming) -> None:
        try:
            self._admit(self._known_of(caller), caller, row, request)
        except RequestError as refused:
            raise self._refusal(caller, row, request, refused) from None

    def turned_away(self, caller: Peer, row: Row, run: Sequence[AnyIncoming]) -> Sequence[Refused]:
        known, admit = self._known_of(caller), self._admit
        refused: list[Refused] = []
        for request in run:
            try:
                admit(known, caller, row, request)
            except RequestError as why:
                refused.append((request, self._refusal(caller, row, request, why)))
            except Exception as failed:
                refused.append((request, failed))
        return refused

    def _refusal(self, caller: Peer, row: Row, request: AnyIncoming, refused: RequestError) -> RequestError:
        """What is raised for this refusal, which is written down; later, when who asks has been no user too often."""
        fact = refused.fact if isinstance(refused, _NoUser) else refused.remark
        if self._audit is not None:
            self._write(self._audit, "refused", caller, row, request, fact)
        refusals = self._refusals
        if not isinstance(refused, _NoUser):
            if refusals is not None:
                refusals.count("rights" if refused.code == ResponseCode.NO_PERMISSION else "request")
            return refused
        log.warning("access.refused", peer=caller.peer, code=row.code, reason=fact)
        delay_s = refusals.refused(caller.peer_host, refused.reason) if refusals is not None else 0.0
        return RefusedSlowly(refused.code, refused.remark, delay_s) if delay_s else refused

    def _write(
        self, audit: AuditLog, decision: str, caller: Peer, row: Row, request: AnyIncoming, reason: str
    ) -> None:
        fields = fields_of(request.frame)
        audit.write(
            decision,
            user=(fields.get(ACCESS_KEY) if fields else None) or caller.subject,
            peer=caller.peer,
            code=row.code,
            request=_NAMES.get(row.code, ""),
            reason=reason,
            is_change=decision == "granted" and _changes(row),
        )

    def admit_found(self, caller: Peer, row: Row, request: AnyIncoming, needs: Sequence[Need]) -> None:
        rules = self._rules
        if (
            not rules.authorization
            or row.code in rules.free_codes
            or rules.as_official
            or self._trusts(caller)
        ):
            return
        fields = fields_of(request.frame)
        name = (fields.get(ACCESS_KEY) if fields else None) or caller.subject
        try:
            user = self._subject(name)
            if not user.is_super:
                self._check(user, needs, caller.peer_host)
        except RequestError as refused:
            raise self._refusal(caller, row, request, refused) from None

    def may_look(self, caller_host: str, subject: str) -> bool:
        """Whether the user that a certificate names may see the state of this server."""
        try:
            self._check_certified(subject)
            user = self._subject(subject)
            if self._rules.authorization and not user.is_super:
                self._check(user, [Need(Kind.CLUSTER, "", (GET,))], caller_host)
        except RequestError:
            return False
        return True

    def greeting(self, caller: Peer) -> Mapping[str, str]:
        return {} if self._freshness is None else self._freshness.greeting(caller)

    def _known_of(self, caller: Peer) -> _Known:
        known = self._known.get(caller)
        if known is None:
            numbers = self._freshness.of(caller) if self._freshness is not None else None
            known = self._known[caller] = _Known(self._table.revision, numbers)
        elif known.revision != self._table.revision or len(known.granted) > GRANTED_MAX:
            known.granted.clear()
            known.judgements.clear()
            known.revision = self._table.revision
        return known

    def lets_all(self, caller: Peer) -> bool:
        return self._trusts(caller)

    def judging(self, caller: Peer, rows: Mapping[int, Row]) -> Judging:
        known, subject = self._known_of(caller), caller.subject

        def find(asked: Asked) -> Judgement | None:
            return self._judgement(known, subject, rows[asked[0]], asked)

        return judging_by(
            known.judgements, find, self._freshness, known.numbers, may_keep=lambda: self._may_keep(known)
        )

    def _judgement(self, known: _Known, subject: str, row: Row, asked: Asked) -> Judgement | None:
        """As `_admit`; None where that has more to do than to look up and to check a signature."""
        rules, (code, access_key, topic, group) = self._rules, asked
        name = access_key.decode() if access_key else subject
        if not name:
            return None
        if rules.authorization and code not in rules.free_codes:
            naming, group_name = self._naming_of(row), group.decode()
            named = _Named(topic.decode(), group_name, group_name)
            if naming is None or (name, code, naming(named)) not in known.granted:
                return None
        if not rules.authentication or code in rules.unsigned_codes or _is_for_anybody(row):
            return Judgement(name, None, is_let_in=True)
        user = self._table.user(name)
        is_enabled = user is not None and user.is_enabled
        if not access_key:  # the certificate is shown
            return Judgement(name, None, is_enabled)
        return Judgement(name, NO_USER if user is None else user.secret.encode(), is_enabled)

    def _admit(self, known: _Known, caller: Peer, row: Row, request: AnyIncoming) -> None:
        rules, code = self._rules, row.code
        if self._trusts(caller):
            return
        fields = fields_of(request.frame)
        name = fields.get(ACCESS_KEY) if fields else None
        has_certificate = not name and caller.subject != ""
        name = name or caller.subject
        if rules.authentication and code not in rules.unsigned_codes and not _is_for_anybody(row):
            if has_certificate:
                self._check_certified(name)
            else:
                self._authenticate(name, fields or {}, request, known.numbers)
        if not rules.authorization or code in rules.free_codes or (not fields and rules.as_official):
            return
        naming = self._naming_of(row)
        place = (name or "", code, naming(request.header)) if naming is not None else None
        if place is not None and place in known.granted:
            return
        self._authorize(name, caller, row, request)
        is_new = False
        if place is not None and name and self._may_keep(known):
            known.granted.add(place)
            is_new = True
        if self._audit is not None and (is_new or _changes(row)):
            self._write(self._audit, "granted", caller, row, request, _words(row, request))

    def _naming_of(self, row: Row) -> Naming | None:
        """What tells requests of this code apart for policies; None where their bodies do."""
        try:
            return self._naming[row.code]
        except KeyError:
            pass
        rules = () if isinstance(row.needs, Open) else row.needs
        plain = bool(rules) and all(rule.field for rule in rules)
        fields = [name for rule in rules for name in (rule.field, rule.official_group) if name]
        found = self._naming[row.code] = attrgetter(*fields) if plain else None
        return found

    # --- who asks ---------------------------------------------------------------------------------------------

    def _authenticate(
        self, name: str | None, fields: dict[str, str], request: AnyIncoming, numbers: Numbers | None
    ) -> None:
        """RequestError NO_PERMISSION unless a user that may speak has signed this, for the first time."""
        if not name:
            raise _NoUser("unsigned", "username cannot be null.")
        if len(fields) > FIELDS_MAX:
            raise _NoUser("request", f"{len(fields)} header fields, at most {FIELDS_MAX} are signed")
        user = self._table.user(name)
        # First, and for a user that is not there as well: how long it takes says nothing.
        key = user.secret.encode() if user is not None else NO_USER
        content = signed_with(key, fields, request.envelope.version, request.body)
        tells_all = self._rules.as_official
        if user is None:
            fact = f"User:{name[:NAME_CHARS_MAX]} is not found."
            raise _NoUser("unknown", fact if tells_all else NOT_SIGNED, fact)
        if not user.is_enabled and (content is not None or tells_all):
            raise _NoUser("disabled", f"User:{name} is disabled.")
        if content is None:
            raise _NoUser("signature", NOT_SIGNED)
        if self._freshness is not None and numbers is not None:
            try:
                self._freshness.check(numbers, name, request.envelope.code, content)
            except NotFresh as why:
                raise _NoUser("replay", str(why)) from None

    def _check_certified(self, subject: str) -> None:
        """RequestError unless the certificate of the connection names a user that may speak: it need not sign."""
        user = self._table.user(subject)
        if user is None:
            raise _NoUser("unknown", f"User:{subject[:NAME_CHARS_MAX]} is not found.")
        if not user.is_enabled:
            raise _NoUser("disabled", f"User:{subject} is disabled.")

    # --- may they ---------------------------------------------------------------------------------------------

    def _authorize(self, name: str | None, caller: Peer, row: Row, request: AnyIncoming) -> None:
        """RequestError NO_PERMISSION unless policies grant everything that the request needs."""
        needed = list(self._needed(row, request))
        if not needed:
            return
        user = self._subject(name)
        if not user.is_super:
            self._check(user, needed, caller.peer_host)

    def _needed(self, row: Row, request: AnyIncoming) -> Iterator[Need]:
        if isinstance(row.needs, Open):
            return
        for rule in row.needs:
            if not (rule.ours and self._rules.as_official):
                yield from rule.needed(request, as_official=self._rules.as_official)

    def _subject(self, name: str | None) -> User:
        if not name:
            raise _refused(UNFIT)
        user = self._table.user(name)
        if user is None:
            raise _refused(f"User:{name[:NAME_CHARS_MAX]} not found.")
        if not user.is_enabled and not self._rules.as_official:  # also where no signature is asked for
            raise _refused(f"User:{name} is disabled.")
        return user

    def _check(self, user: User, needed: Sequence[Need], address: str) -> None:
        acl = self._table.acl(user.name)
        for kind, name, actions in needed:
            name = name or (self._rules.cluster_name if kind is Kind.CLUSTER else name)
            verdict = decide(
                acl,
                kind.value,
                name,
                frozenset([Action[action.name] for action in actions]),
                address,
                as_official=self._rules.as_official,
            )
            if verdict is not Verdict.ALLOWED:
                raise _refused(
                    f"User:{user.name} has no permission to access {kind.value}:{name} from {address}, {verdict.value}"
                )


def administers(row: Row) -> bool:
    """Whether such a request looks at or changes the server itself, or changes what others use."""
    return _changes(row) or (
        not isinstance(row.needs, Open) and any(rule.kind is Kind.CLUSTER for rule in row.needs)
    )


def _changes(row: Row) -> bool:
    """Whether such a request changes something that lasts; others whose bodies say what they need come all the time."""
    return not isinstance(row.needs, Open) and any(not CHANGES.isdisjoint(rule.actions) for rule in row.needs)


def _words(row: Row, request: AnyIncoming) -> str:
    """What was granted, and for which user or subject an administrator asks."""
    words = [f"{need.kind.value}:{need.name}" for need in row.needed(request)]
    about = getattr(request.header, "username", None) or getattr(request.header, "subject", None)
    return ", ".join(words) + (f" for {about}" if about else "")


def _is_for_anybody(row: Row) -> bool:
    return isinstance(row.needs, Open) and row.needs.unsigned


def _refused(remark: str) -> RequestError:
    return RequestError(ResponseCode.NO_PERMISSION, remark)
