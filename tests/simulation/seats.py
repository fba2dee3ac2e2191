"""What an election promises, looked at from outside while it runs: who may be master, and what an answer of it means.

- One member at most holds the seat, each by its own clock, also when the register gives it to another one; its epoch
  never falls, no two masters have the same one, and who takes the seat was in sync.
- Nobody answers a send that began when it was not master any more, by its own clock or by the register.
- An acknowledged message is at every member that is in sync by the register, as safe as that promises; no member cuts
  one off its log, but behind a damaged place where nobody counts on it.
- What a master confirms, and so shows to readers, is at every member that is in sync by the register.
- The epoch of a master is on its disk before it serves.

An older state of the register that comes back changes nothing of that: what counts is the newest set that it ever had.
"""

from collections.abc import Sequence
from math import inf
from typing import Final

import msgspec

from aerobee_broker.election.records import MasterRecord, SetRecord
from aerobee_proto.message_ids import decode_offset_message_id
from aerobee_store.replicas.epochs import EPOCH_FILE
from simulation.cluster import STORE
from simulation.copies import Copies
from simulation.elected import ElectedHost
from simulation.ledger import Broken, Sent
from simulation.world import World

__all__ = ["Seats"]

LOOK_S: Final = 0.05


class Seats:
    """Of one set. Whoever finds something broken raises it at once, and so ends the simulation."""

    def __init__(self, world: World, members: Sequence[ElectedHost], copies: Copies) -> None:
        self._world = world
        self._members = members
        self._copies = copies
        self._set: SetRecord | None = None  # the newest that the register has had
        # Who may take the seat without being in sync, as an operator says so, or as the set is made anew.
        self.let_in: frozenset[int] = frozenset()
        # Since when a member is known not to be master, by its name.
        self._lost_at: dict[str, float] = {}
        # Since when the register has no key of a member that was master, by its number; and who has it.
        self._without_key: dict[int, float] = {}
        self._key_of = 0
        self._acknowledged: list[tuple[int, bytes, str]] = []  # physical offsets, bodies, at whom
        self._disks = {host.name: host.disk_number for host in members}

    @property
    def newest(self) -> SetRecord | None:
        """The set as the register had it last, whatever it has gone back to."""
        return self._set

    # --- who is master ----------------------------------------------------------------------------------------

    def look(self) -> None:
        """See who holds the seat, and look again."""
        holders = [host for host in self._members if host.holds_until > self._world.now]
        if len(holders) > 1:
            names = ", ".join(f"{host.name} until {host.holds_until:.3f} s" for host in holders)
            raise Broken(f"more than one member may answer: {names}")
        for host in self._members:
            if host in holders:
                self._lost_at.pop(host.name, None)
            else:
                self._lost_at.setdefault(host.name, self._world.now)
        self._world.at(self._world.now + LOOK_S, None, self.look)

    def leased(self, host: ElectedHost) -> None:
        """A member has heard that its lease lasts: in time, or late, and it is master once more if nobody else is."""
        if host.holds_until > self._world.now:
            self._lost_at.pop(host.name, None)

    def serves(self, host: ElectedHost, epoch: int) -> None:
        """A life of a master begins to serve."""
        self._lost_at.pop(host.name, None)
        path = f"{STORE}/{EPOCH_FILE}"
        inode = host.disk.names.get(path)
        text = bytes(inode.live) if inode is not None else b""
        if b"\n%d-" % epoch not in text or not host.disk.is_safe(path, 0, text):
            raise Broken(f"{host.name} is master of epoch {epoch}, and its disk does not say so: {text!r}")

    def written(self, key: str, value: bytes | None) -> None:
        """The register has a new value; None: it has no such key any more."""
        if key.endswith("/master"):
            self._without_key[self._key_of] = self._world.now
            self._key_of = msgspec.json.decode(value, type=MasterRecord).member if value is not None else 0
            self._without_key.pop(self._key_of, None)
        if not key.endswith("/set") or value is None:
            return
        before, self._set = self._set, msgspec.json.decode(value, type=SetRecord)
        if before is None:
            return
        if self._set.epoch < before.epoch:
            raise Broken(f"the register is at epoch {self._set.epoch}, and was at {before.epoch}")
        if self._set.epoch == before.epoch and self._set.master != before.master:
            raise Broken(
                f"members {before.master} and {self._set.master} are both master of epoch {before.epoch}"
            )
        for host in self._members:
            if (
                self._set.epoch > before.epoch
                and host.number != self._set.master
                and host.holds_until > self._world.now
            ):
                raise Broken(
                    f"member {self._set.master} takes the seat, and {host.name} may answer until "
                    f"{host.holds_until:.3f} s"
                )
        allowed, self.let_in = self.let_in | before.in_sync.keys(), frozenset()
        if self._set.epoch > before.epoch and self._set.master not in allowed:
            raise Broken(
                f"member {self._set.master} takes the seat; in sync were {sorted(before.in_sync)} alone"
            )

    # --- what is acknowledged ---------------------------------------------------------------------------------

    def witness(self, sent: Sent, stored_as: str) -> None:
        """A message was acknowledged."""
        stored = decode_offset_message_id(stored_as)
        at = stored.physical_offset
        self._acknowledged.append((at, sent.body, str(stored.host)))
        for host in self._members:
            lost_at = min(self._lost_at.get(host.name, inf), self._without_key.get(host.number, inf))
            if host.leased_until < self._world.now:
                lost_at = min(lost_at, host.leased_until)
            if host.address == str(stored.host) and sent.began > lost_at:
                raise Broken(
                    f"{host.name} has answered {sent.body!r}, which was sent at {sent.began:.3f} s, and was no "
                    f"master from {lost_at:.3f} s on"
                )
            is_counted = self._set is not None and host.number in self._set.in_sync
            if is_counted and not self._copies.has(host, at, sent.body):
                raise Broken(f"{sent.body!r} at {at} of the log is acknowledged, and not safe at {host.name}")

    def confirms(self, master: ElectedHost, begin: int, end: int) -> None:
        """Readers see this part of a master's log from now on."""
        for host in self._members:
            is_counted = self._set is not None and host.number in self._set.in_sync
            if not is_counted or host.disk_number != self._disks[host.name]:  # another store has its number
                continue
            differs = self._copies.first_lacking(master, host, begin, end)
            if differs is not None:
                raise Broken(
                    f"{master.name} shows its log up to {end}, and {host.name}, which is in sync, has no more of "
                    f"that than up to {differs}"
                )

    def cuts(self, host: ElectedHost, offset: int) -> None:
        """A member is about to cut its log back to there; START_OVER: to give it up. Where it is damaged from there on,
        nobody counts on it, and those in sync have all of it, it may: it has that copied again."""
        in_sync = frozenset[int]() if self._set is None else frozenset(self._set.in_sync)
        others = [one for one in self._members if one.number in in_sync]
        may = host.number not in in_sync and bool(others) and self._copies.is_damaged(host, offset)
        for at, body, stored_at in self._acknowledged:
            if at < offset or not self._copies.has(host, at, body, stored_at):
                continue
            if not (may and all(self._copies.has(one, at, body, stored_at) for one in others)):
                raise Broken(f"{host.name} cuts its log at {offset}, and {body!r} at {at} off")
