"""The handshake on the link between two brokers of ours: who both are, and where the slave's log has to go on.

Touches  nothing: each end is a generator that yields what it wants done, and is sent the answer.

    Say(message)            send it
    Hear()                  the next message of the other end
    Digest(ranges)          digests of ranges of the own log
    Borders(begin, end)     where messages of the own log begin or end

Both ends prove that they know the secret that the brokers of a cluster have in common, if they have one: with
HMAC-SHA256 over what was said so far, the numbers in it drawn anew by either end. The master first; the slave says
nothing of its log before, and the master nothing of its own before the slave has.

What comes out of it for the slave

    Go(epochs, ...)         its log is the beginning of the master's, or empty: the link goes on as RocketMQ's
    CutBack(offset)         its log has more than the master's, from there on: to be cut back, then once more
    StartOver()             the master has deleted what the slave needs next: to be copied from the beginning
    LinkFault               not to be followed: another set, a master that was replaced, a log with nothing in common

Invariants
- A slave follows no master of an epoch below the newest one that it knows of.
- A log is cut back for a mastership alone that is newer than what wrote the bytes that go: a master that lost bytes of
  its own epoch, or of a set without epochs, is not to take them from its slaves, too. The operator decides.
- But a slave that has found damage in its own log, which the master has whole, is cut back to where that begins, if all
  that it has behind it is the master's, too. Not while the set counts on it: it takes no seat with less than it had.
- A log is cut back to nothing only where nobody was told of anything in it, or where the master has all of it.
- The master looks for itself whether the last bytes of the slave are its own, before it gives anything.
"""

import hmac
from collections.abc import Callable, Generator, Sequence
from hashlib import sha256
from itertools import pairwise
from typing import Any, Final, NamedTuple, TypeVar

from aerobee_broker.replication.common_part import Borders, Same, common_end_by_bytes, window_before
from aerobee_broker.replication.faults import LinkFault
from aerobee_proto.errors import FormatError
from aerobee_proto.ha_hello import (
    CONFIRMED_SINCE,
    NEWS_SINCE,
    VERSION,
    Challenge,
    Compare,
    Digests,
    Facts,
    Hello,
    Join,
    Joined,
    Message,
    Proof,
    Refusal,
    encode_message,
)
from aerobee_store.replicas.epochs import Epoch, common_end, sound_epochs

__all__ = [
    "COMPARED_SIZE_MAX",
    "NONCE_SIZE",
    "CutBack",
    "Digest",
    "Go",
    "Hear",
    "Member",
    "Outcome",
    "Say",
    "Span",
    "StartOver",
    "Visitor",
    "greet_master",
    "greet_slave",
]

NONCE_SIZE: Final = 32
ROUNDS_MAX: Final = 64
SOUND_MAX: Final = 16  # stretches between damaged places that are compared, the last ones
COMPARED_SIZE_MAX: Final = 64 << 20  # bytes that a master reads for one handshake
_MASTER: Final = b"aerobee replication: the master"
_SLAVE: Final = b"aerobee replication: the slave"


class Member(NamedTuple):
    """Who one end is."""

    cluster: str
    broker_name: str
    member: int
    store: str  # names its store
    epoch: int  # of a master its own; of a slave the newest that it knows
    file_size: int
    secret: bytes | None


class Span(NamedTuple):
    """What one end has of the log: the physical offsets [begin, end)."""

    begin: int
    end: int
    epochs: Sequence[Epoch]
    is_empty: bool = False  # it may begin with any file
    damaged: Sequence[tuple[int, int]] = ()  # ranges of it that are known to be no messages any more
    is_counted_on: bool = False  # others take it to have everything that was acknowledged
    store: str = ""  # that all of it was written in: a master's own, or the one that it is a copy of
    is_elected: bool = False  # each master of its set had everything that was acknowledged before


class Say(NamedTuple):
    message: Message


class Hear(NamedTuple):
    pass


class Digest(NamedTuple):
    ranges: Sequence[tuple[int, int]]


Step = Say | Hear | Digest | Borders
Answer = Message | Sequence[bytes] | Sequence[int] | None
T = TypeVar("T")
Flow = Generator[Step, Answer, T]
M = TypeVar("M", bound=Message)


class Go(NamedTuple):
    epochs: Sequence[Epoch]
    says_confirmed: bool = False  # the master will say what its readers see
    store: str = ""  # the master's; "" when it does not say


class CutBack(NamedTuple):
    offset: int


class StartOver(NamedTuple):
    pass


Outcome = Go | CutBack | StartOver


class Visitor(NamedTuple):
    """The slave, as the master knows it now."""

    member: int
    store: str
    offset: int  # where its log ends
    hears_confirmed: bool = False  # it wants to know what this master's readers see
    follows_news: bool = False  # it asks for news of the tables


# --- the slave's end --------------------------------------------------------------------------------------------


def greet_master(me: Member, log: Span, nonce: bytes) -> Flow[Outcome]:
    """The slave's end. LinkFault: not to be followed, or not served. FormatError: the other end is none of ours."""
    hello = Hello(VERSION, me.cluster, me.broker_name, me.member, me.store, me.epoch, me.file_size, nonce)
    yield Say(hello)
    challenge = yield from _hear(Challenge)
    _check_proof(me.secret, _MASTER, challenge.proof, hello, _unproven(challenge))
    if challenge.epoch < me.epoch:
        reason = f"the master has epoch {challenge.epoch}, and there was one of epoch {me.epoch} since"
        yield from _refuse(LinkFault("fenced", reason), me.epoch)
    yield Say(Proof(_proof(me.secret, _SLAVE, hello, challenge)))
    facts = yield from _hear(Facts)
    theirs = Span(facts.begin, facts.end, [Epoch(*entry) for entry in facts.epochs], store=facts.store)
    if theirs.begin > theirs.end or not sound_epochs(theirs.epochs):
        raise FormatError("what the master says of its log cannot be")
    found = yield from _place_in(log, theirs, challenge.epoch)
    if isinstance(found, CutBack | StartOver):
        return found
    if found < log.end:
        _check_cut(log, found, challenge.epoch)
        return CutBack(found)
    begin, end = window_before(min(max(log.begin, theirs.begin), found), found)
    (digest,) = yield from _digest([(begin, end)])
    yield Say(Join(begin, end, digest))
    joined = yield from _hear(Joined)
    epochs = [Epoch(*entry) for entry in joined.epochs]
    if not sound_epochs(epochs) or joined.epoch < me.epoch:
        raise FormatError("the epochs of the master cannot be")
    return Go(epochs, min(VERSION, challenge.version) >= CONFIRMED_SINCE, facts.store)


def _place_in(log: Span, theirs: Span, epoch: int) -> Flow["int | CutBack | StartOver"]:
    """Where the log goes on in the master's; below its own end: it has more than is the same. Or what has to become of
    it before."""
    if log.begin == log.end:
        # Nothing to be compared. One that has a file cannot begin with another one.
        if log.is_empty or theirs.begin <= log.end <= theirs.end:
            return log.end
        return StartOver()
    known_end = common_end(log.epochs, log.end, theirs.epochs, theirs.end)
    if log.end < theirs.begin:
        if (log.epochs or theirs.epochs) and known_end != log.end:
            reason = f"it ends at {log.end}, the master's begins at {theirs.begin}, and they have no epoch in common"
            raise _stranger(reason)
        if not (log.epochs or (log.store and log.store == theirs.store)):
            raise LinkFault(
                "too_old",
                f"this log ends at {log.end}, the master's begins at {theirs.begin}: what lies between is deleted, "
                "and nobody knows whether the master ever had what is here: there are no epochs, and it was not copied "
                "from that store alone",
                "empty the store folder of this broker and start it again: it begins anew",
            )
        return StartOver()
    if _is_of_nobody(log, theirs, epoch):
        return StartOver()
    begin, end = max(log.begin, theirs.begin), min(log.end, theirs.end)
    if begin >= end:
        if log.end == begin and (known_end == log.end or not (log.epochs or theirs.epochs)):
            return log.end
        raise _stranger(f"it has {log.begin} to {log.end}, the master's {theirs.begin} to {theirs.end}")
    found = yield from _compared(begin, end, known_end)
    if (yield from _is_damage(log, theirs, found, has_common=found > begin)):
        if log.is_counted_on:
            raise LinkFault(
                "damaged",
                f"this log is damaged at {found}; when the set does not count on it any more, it is cut back to there "
                "and copied again",
            )
        return CutBack(found) if found > log.begin else StartOver()
    if found == begin:
        raise _stranger(f"nothing from {begin} on is the same")
    if known_end is not None and found < min(end, known_end):
        _check_cut(log, found, epoch)
        raise LinkFault(
            "damaged",
            f"both logs are the same up to {min(end, known_end)} by their epochs, but they differ from {found} on",
            "check both stores (aerobee store verify); the one that is damaged begins anew with an empty folder",
        )
    return found


def _is_damage(log: Span, theirs: Span, offset: int, *, has_common: bool) -> Flow[bool]:
    """Whether this log is another one from there on because it is damaged, and for nothing else: the master has all of
    it, and the same behind each damaged place, of which there are many where power failed while much was copied; its
    very beginning may be one. `has_common`: they are known to have been one log."""
    places = sorted(place for place in log.damaged if offset <= place[0] < log.end)
    if not places or places[0][0] != offset or theirs.end < log.end:
        return False
    borders = pairwise([*places, (log.end, log.end)])
    sound = [window_before(end, begin) for (_, end), (begin, _) in borders if end < begin]
    return all((yield from _same(sound[-SOUND_MAX:]))) if sound else has_common


def _is_of_nobody(log: Span, theirs: Span, epoch: int) -> bool:
    """Whether nothing of this log was ever answered with success, though it has nothing in common with the master's.

    An election chose them. All of it is of the first master of the set, and the next one began with an empty log: it
    was in sync nevertheless. Or this one became master later than the other one began: each of them was in sync and had
    nothing of what the other one had written, before any of that was copied. A master whose log begins later than all
    of this may have got a new disk, and be the master by mistake. So may any master that an operator chose."""
    if not log.is_elected or not log.epochs or not theirs.epochs:
        return False
    first, following = log.epochs[0], theirs.epochs[0]
    if {log.begin, theirs.begin, first.start_offset, following.start_offset} != {0}:
        return False
    if len(log.epochs) == 1 and following.epoch > first.epoch:
        return True
    newest = log.epochs[-1].epoch
    has_common = not {one.epoch for one in log.epochs}.isdisjoint([one.epoch for one in theirs.epochs])
    return not has_common and following.epoch < newest < epoch


def _stranger(reason: str) -> LinkFault:
    return LinkFault(
        "stranger",
        f"this log is not the beginning of the master's: {reason}",
        "compare brokerName and the addresses; to let this broker begin anew, empty its store folder",
    )


def _check_cut(log: Span, offset: int, epoch: int) -> None:
    """LinkFault when nobody but an operator may give up what lies behind `offset`."""
    own_epoch = max((entry.epoch for entry in log.epochs if entry.start_offset < log.end), default=0)
    if epoch <= own_epoch:
        raise LinkFault(
            "ahead",
            f"this log has {log.end - offset} bytes from {offset} on that the master, of epoch {epoch}, does not have: "
            "it has lost them, or was started with an older store",
            "decide which of the two logs is the right one; docs/replication.md says how",
        )


def _compared(begin: int, end: int, known_end: int | None) -> Flow[int]:
    """The last border up to which both logs are the same; `begin` if nothing is. `known_end`: where they part by their
    epochs."""
    if (yield from _same([window_before(begin, end)]))[0]:
        return end
    search = common_end_by_bytes(begin, end if known_end is None else max(begin, min(end, known_end)))
    asked = next(search)
    try:
        while True:
            if isinstance(asked, Same):
                asked = search.send((yield from _same(asked.ranges)))
            else:
                asked = search.send((yield from _borders(asked)))
    except StopIteration as done:
        found: int = done.value
        return found


def _same(ranges: Sequence[tuple[int, int]]) -> Flow[list[bool]]:
    own = yield from _digest(ranges)
    yield Say(Compare(list(ranges)))
    theirs = (yield from _hear(Digests)).digests
    if len(theirs) != len(own):
        raise FormatError(f"{len(own)} ranges were asked for, {len(theirs)} answered")
    return [bool(mine) and mine == other for mine, other in zip(own, theirs, strict=True)]


# --- the master's end -------------------------------------------------------------------------------------------


def greet_slave(me: Member, span: Callable[[], Span], nonce: bytes) -> Flow[Visitor]:
    """The master's end; `span` is its log at this moment. LinkFault: this slave gets nothing, and hears why; `epoch` is
    there if it knows a newer one."""
    hello = yield from _hear(Hello)
    fault = _unfit(me, hello)
    if fault is not None:
        yield from _refuse(fault, me.epoch)
    version = min(VERSION, hello.version)
    challenge = Challenge(version, me.member, me.epoch, me.file_size, nonce)
    challenge = _proven(challenge, _proof(me.secret, _MASTER, hello, challenge))
    yield Say(challenge)
    proof = yield from _hear(Proof)
    try:
        _check_proof(me.secret, _SLAVE, proof.proof, hello, challenge)
    except LinkFault as stranger:
        yield from _refuse(stranger, me.epoch)
    log = span()
    yield Say(Facts(log.begin, log.end, list(map(_pair, log.epochs)), log.store))
    join = yield from _until_join()
    log = span()
    own = (yield from _digest([(join.begin, join.offset)]))[0] if join.begin < join.offset else b""
    is_same = join.begin == join.offset or (bool(own) and hmac.compare_digest(own, join.digest))
    if join.begin > join.offset or not is_same or join.offset > log.end:
        yield from _refuse(
            LinkFault("diverged", f"the slave's log up to {join.offset} is not this one"), me.epoch
        )
    yield Say(Joined(me.epoch, list(map(_pair, log.epochs))))
    return Visitor(hello.member, hello.store, join.offset, version >= CONFIRMED_SINCE, version >= NEWS_SINCE)


def _unfit(me: Member, hello: Hello) -> LinkFault | None:
    """Why this slave is not served."""
    if (hello.cluster, hello.broker_name) != (me.cluster, me.broker_name):
        return LinkFault("stranger", f"it is of set {hello.broker_name} of cluster {hello.cluster}")
    if hello.file_size != me.file_size:
        return LinkFault(
            "file_size",
            f"its log has files of {hello.file_size} bytes, this one of {me.file_size}",
            "set mappedFileSizeCommitLog to the master's, and let the slave begin with an empty folder",
        )
    if hello.member == me.member and me.epoch:
        return LinkFault(
            "member", f"it has this master's number, {me.member}", "give each broker a brokerId of its own"
        )
    if hello.epoch > me.epoch:
        return LinkFault(
            "replaced",
            f"it knows a master of epoch {hello.epoch}, this one has {me.epoch}",
            epoch=hello.epoch,
        )
    return None


def _until_join() -> Flow[Join]:
    """Compare for the slave until it knows where its log goes on."""
    size = 0
    for _ in range(ROUNDS_MAX):
        message = yield from _hear_one_of(Compare, Join)
        if isinstance(message, Join):
            size += message.offset - message.begin
            if size <= COMPARED_SIZE_MAX:
                return message
            break
        assert isinstance(message, Compare)
        size += sum(max(end - begin, 0) for begin, end in message.ranges)
        if size > COMPARED_SIZE_MAX:
            break
        yield Say(Digests(list((yield from _digest(message.ranges)))))
    raise LinkFault("too_curious", f"the slave wants more of the log compared than {COMPARED_SIZE_MAX} bytes")


# --- both -------------------------------------------------------------------------------------------------------


def _hear(expected: type[M]) -> Flow[M]:
    message = yield from _hear_one_of(expected)
    assert isinstance(message, expected)
    return message


def _hear_one_of(*expected: type[Any]) -> Flow[Message]:
    message: Any = yield Hear()
    if isinstance(message, Refusal):
        raise LinkFault(
            message.kind, f"refused by the other end: {message.reason}", message.way_out, message.epoch
        )
    if not isinstance(message, expected):
        raise FormatError(f"the other end says {type(message).__name__} where it must not")
    heard: Message = message
    return heard


def _digest(ranges: Sequence[tuple[int, int]]) -> Flow[Sequence[bytes]]:
    found = yield Digest(ranges)
    assert isinstance(found, Sequence)
    return found  # type: ignore[return-value]


def _borders(asked: Borders) -> Flow[Sequence[int]]:
    found = yield asked
    assert isinstance(found, Sequence)
    return found  # type: ignore[return-value]


def _refuse(fault: LinkFault, epoch: int) -> Flow[None]:
    yield Say(Refusal(fault.kind, fault.reason, fault.way_out, epoch))
    raise fault


def _pair(entry: Epoch) -> tuple[int, int]:
    return entry.epoch, entry.start_offset


def _unproven(challenge: Challenge) -> Challenge:
    return _proven(challenge, b"")


def _proven(challenge: Challenge, proof: bytes) -> Challenge:
    said = challenge
    return Challenge(said.version, said.member, said.epoch, said.file_size, said.nonce, proof)


def _proof(secret: bytes | None, label: bytes, *said: Message) -> bytes:
    """b"" without a secret."""
    if secret is None:
        return b""
    return hmac.digest(
        secret, label + b"".join(sha256(encode_message(message)).digest() for message in said), sha256
    )


def _check_proof(secret: bytes | None, label: bytes, proof: bytes, *said: Message) -> None:
    if hmac.compare_digest(_proof(secret, label, *said), proof):
        return
    reason = "the other end has another secret"
    if not proof or secret is None:
        reason = f"{'this broker' if secret is None else 'the other end'} has none"
    raise LinkFault(
        "credentials",
        f"both have to know the same innerClientAuthenticationCredentials: {reason}",
        "give the brokers of a set the same innerClientAuthenticationCredentials",
    )
