"""What was asked of the brokers, what they answered, and whether the two go together.

Every message has a body of its own, so each answer and each reading says which message is meant. What is checked, some
of it at once, the rest when all faults are over and every queue has been read to its end:

- An acknowledged message is there, once, under the offset that it was acknowledged with, with its bytes.
- No offset of a queue is given to two messages, whether it was acknowledged with it or seen by a reader.
- What a reader has seen stays there: nobody sees what can be taken back.
- A message whose send had ended before another's began has the smaller offset of a queue.
- A message is there twice only if its sender had to try twice.
- Nobody reads what nobody sent.
- A group's offset goes back only as far as a crash may take it.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from simulation.edges import edges
from simulation.world import World

__all__ = ["Broken", "Ledger", "Place", "Queue", "Sent"]

Place = tuple[str, str, int, int]  # broker name, topic, queue, offset
Queue = tuple[str, str, int]


class Broken(Exception):
    """A promise was broken. The simulation ends with it, also where it is found in a task that nobody waits for."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        if edges.threads is not None:
            edges.threads.world.failure = self


@dataclass(slots=True)
class Sent:
    """One message that somebody sent."""

    body: bytes
    topic: str
    began: float
    tries_max: int | None = 1  # None: as many as there was time for
    ended: float | None = None
    place: Place | None = None  # that it was acknowledged with
    # Of one that is not stored where it is read: acknowledged; must never be read.
    is_acknowledged: bool = False
    is_forbidden: bool = False


@dataclass(slots=True)
class _Commits:
    """What is known of one group's offset in one queue."""

    acknowledged: list[tuple[float, int]] = field(default_factory=list)
    sent: set[int] = field(default_factory=set)
    floor: int = 0  # no query may give less


class Ledger:
    """Of one simulation."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sent: dict[bytes, Sent] = {}
        self.at: dict[Place, bytes] = {}
        self.seen: set[Place] = set()
        self._came: set[bytes] = set()  # bodies that a reader has seen
        self._commits: defaultdict[tuple[str, Queue], _Commits] = defaultdict(_Commits)
        # How old a committed offset may be that a crash takes back, in seconds.
        self.commits_kept_s = 3.0
        self.acknowledged = 0
        self.unknown = 0
        self.delivered: defaultdict[str, set[bytes]] = defaultdict(set)  # group -> bodies it has handled
        # Told of each acknowledged message and of the id that says where in the log it is.
        self.witness: Callable[[Sent, str], None] = lambda sent, stored_as: None

    # --- sending ----------------------------------------------------------------------------------------------

    def sending(self, body: bytes, topic: str, tries_max: int | None = 1) -> Sent:
        """A send begins."""
        assert body not in self.sent
        made = self.sent[body] = Sent(body, topic, self._world.now, tries_max)
        return made

    def acknowledge(self, sent: Sent, place: Place, stored_as: str) -> None:
        """It was answered that the message is stored there, with that id."""
        sent.ended = self._world.now
        sent.is_acknowledged = True
        sent.place = place
        self.acknowledged += 1
        self._stands_at(place, sent.body, "acknowledged")
        self.witness(sent, stored_as)

    def acknowledge_somewhere(self, sent: Sent) -> None:
        """It was answered that the message will come."""
        sent.ended = self._world.now
        sent.is_acknowledged = True
        self.acknowledged += 1

    def lose_sight(self, sent: Sent, why: object) -> None:
        """Nobody knows whether it is stored."""
        self.unknown += 1

    def _stands_at(self, place: Place, body: bytes, how: str) -> None:
        other = self.at.setdefault(place, body)
        if other != body:
            first = "acknowledged for" if self.sent[other].place == place else "read as"
            raise Broken(f"{show(place)} was {first} {other[:80]!r}, and is {how} for {body[:80]!r}")

    # --- reading ----------------------------------------------------------------------------------------------

    def read(self, place: Place, body: bytes) -> None:
        """A reader has got this from there."""
        sent = self.sent.get(body)
        if sent is None:
            raise Broken(f"at {show(place)} somebody read {body[:80]!r}, which nobody sent")
        if sent.topic != place[1]:
            raise Broken(f"{body!r} was sent to {sent.topic} and read from {show(place)}")
        if sent.is_forbidden:
            raise Broken(f"{body!r} was rolled back and read from {show(place)}")
        self._stands_at(place, body, "read")
        self.seen.add(place)
        self._came.add(body)

    def handled(self, group: str, body: bytes) -> None:
        """A member of the group has got it."""
        if body not in self.sent:
            raise Broken(f"group {group} got {body[:80]!r}, which nobody sent")
        self.delivered[group].add(body)

    # --- committed offsets ------------------------------------------------------------------------------------

    def committing(self, group: str, queue: Queue, offset: int) -> None:
        self._commits[group, queue].sent.add(offset)

    def committed(self, group: str, queue: Queue, offset: int) -> None:
        """The broker has taken the offset."""
        commits = self._commits[group, queue]
        commits.acknowledged.append((self._world.now, offset))

    def found_committed(self, group: str, queue: Queue, offset: int | None) -> None:
        """The broker says that the group is there."""
        commits = self._commits[group, queue]
        found = 0 if offset is None else offset
        if found < commits.floor:
            raise Broken(f"group {group} was at {commits.floor} of {queue}, and is at {offset}")
        if found and found not in commits.sent:
            raise Broken(f"group {group} is at {found} of {queue}, which nobody committed")
        commits.floor = found

    def crashed(self, broker: str) -> None:
        """The broker's process ended: what was committed a moment ago may be forgotten."""
        self.forget_commits(broker, self._world.now - self.commits_kept_s)

    def forget_commits(self, broker: str, since: float) -> None:
        """What was committed since then may be forgotten."""
        for (_, queue), commits in self._commits.items():
            if queue[0] == broker:
                commits.acknowledged = [one for one in commits.acknowledged if one[0] < since]
                commits.floor = max((offset for _, offset in commits.acknowledged), default=0)

    # --- the end ----------------------------------------------------------------------------------------------

    def check(self, logs: dict[Queue, list[tuple[int, bytes]]], begins: dict[Queue, int]) -> None:
        """Everything that is in the queues now, in their order, from `begins` on."""
        copies: defaultdict[bytes, list[Place]] = defaultdict(list)
        found: dict[Place, bytes] = {}
        for (broker, topic, queue_id), records in logs.items():
            last = -1
            for offset, body in records:
                place = (broker, topic, queue_id, offset)
                if offset <= last:
                    raise Broken(f"{show(place)} comes after {last}")
                last = offset
                self.read(place, body)
                found[place] = body
                copies[body].append(place)
        for place, body in self.at.items():
            if place not in found and place[3] >= begins.get(place[:3], 0):
                how = "acknowledged" if self.sent[body].place == place else "seen by a reader"
                raise Broken(f"{body!r} at {show(place)} was {how} and is gone")
        for body, places in copies.items():
            tries_max = self.sent[body].tries_max
            if tries_max is not None and len(places) > tries_max:
                raise Broken(f"{body!r} is there {len(places)} times: {', '.join(map(show, places))}")
        for sent in self.sent.values():
            if (
                sent.is_acknowledged
                and sent.place is None
                and not sent.is_forbidden
                and sent.body not in copies
            ):
                raise Broken(f"{sent.body!r} for {sent.topic} was acknowledged and has not come")
        for queue, records in logs.items():
            self._check_order(queue, records)

    def _check_order(self, queue: Queue, records: list[tuple[int, bytes]]) -> None:
        """No message stands behind one whose send began after its own had ended."""
        earliest_end, behind = float("inf"), b""
        for offset, body in reversed(records):
            sent = self.sent[body]
            if sent.place is not None and sent.place[3] != offset:
                continue  # a copy of another try
            if sent.began > earliest_end:
                raise Broken(
                    f"{body!r} at {offset} of {queue} was sent when {behind!r}, which stands behind it, was there"
                )
            if sent.place is not None and sent.ended is not None and sent.ended < earliest_end:
                earliest_end, behind = sent.ended, body

    def missing(self, group: str, topic: str) -> list[bytes]:
        """Acknowledged messages of a topic that the group has not got."""
        return [
            sent.body
            for sent in self.sent.values()
            if sent.topic == topic
            and sent.is_acknowledged
            and not sent.is_forbidden
            and sent.body not in self.delivered[group]
        ]

    def to_come(self) -> bool:
        """Whether no reader has seen yet what was acknowledged for later."""
        return any(
            sent.is_acknowledged
            and sent.place is None
            and not sent.is_forbidden
            and sent.body not in self._came
            for sent in self.sent.values()
        )

    def check_handled(self, group: str, topic: str) -> None:
        """The group has got every acknowledged message of a topic."""
        missing = self.missing(group, topic)
        if missing:
            raise Broken(
                f"group {group} never got {len(missing)} messages of {topic}, {missing[0]!r} the first"
            )


def show(place: Place) -> str:
    """For people."""
    broker, topic, queue_id, offset = place
    return f"{topic} {queue_id} of {broker}, offset {offset}"
