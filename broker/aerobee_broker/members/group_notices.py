"""Telling the members of a group that it changed, so that they share its queues out anew.

Touches  members' connections, and timers of the event loop.

A change of a small group is told to each member at once. Where a thousand members start together, each start would
be told to all who are there: a million notices. In a large group a member is told of the first change at once and
of those that follow together, after `WINDOW_S`; what it asks then is answered with the state of that moment.

Of a member that says good-bye the others are told `GOOD_BYE_S` later. Official clients send their last offsets and
then the good-bye, but some of these one-way requests overtake each other: 5 ms later they are there. Who asked for the
offset of a queue before that would read again what the leaver has done.

Invariants
- After the last change of a group every member is told once more, at once or when its window ends.
- Who is to be told in a later turn stands in one row, once, however many changes there were: no turn tells more than
  `TURN_MAX` of that row.
"""

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from aerobee_proto.codes import RequestCode
from aerobee_remoting.peers.errors import RemotingError
from aerobee_remoting.peers.peer import Peer

__all__ = ["GOOD_BYE_S", "LARGE_GROUP", "WINDOW_S", "GroupNotices"]

log = structlog.get_logger()

LARGE_GROUP: Final = 32  # members told at a time, above which they are told together
TURN_MAX: Final = 512  # members told in one turn of the loop; one takes 10 us
WINDOW_S: Final = 0.2
GOOD_BYE_S: Final = 0.1


class GroupNotices:
    """Tells members that their groups changed, and knows who was told within the last window. All calls from the
    event loop."""

    def __init__(self) -> None:
        # Of the windows that are running: peer -> group -> whether it changed within.
        self._windows: WeakKeyDictionary[Peer, dict[str, bool]] = WeakKeyDictionary()
        # Who is told in the next turns: (group, peer), each once.
        self._row = deque[tuple[str, Peer]]()
        self._in_row: set[tuple[str, Peer]] = set()
        # Groups that somebody has said good-bye to: who was there after the last one.
        self.good_byes: dict[str, list[tuple[str, Peer]]] = {}

    def notify(self, members: Iterable[tuple[str, Peer]]) -> int:
        """Tell members (group, connection) that their group changed; how many are told, now or soon."""
        chosen = list(members)
        if len(chosen) <= LARGE_GROUP:
            return sum(_notify(group, connection) for group, connection in chosen)
        if self._row:
            self._join(chosen)
            return len(chosen)
        notified = sum(self._notify_in_windows(*member) for member in chosen[:TURN_MAX])
        self._join(chosen[TURN_MAX:])
        return notified + max(0, len(chosen) - TURN_MAX)

    def notify_of_good_bye(self, members: Iterable[tuple[str, Peer]]) -> None:
        """Tell members of a group that one of them has left, once its last offsets have had time to arrive.

        Of those that leave before the others are told only the last one counts: whoever is there then is told of all.
        """
        chosen = list(members)
        if not chosen:
            return
        group = chosen[0][0]
        is_first = group not in self.good_byes
        self.good_byes[group] = chosen
        if is_first:
            asyncio.get_running_loop().call_later(GOOD_BYE_S, self._end_good_byes, group, chosen)

    def _end_good_byes(self, group: str, first: list[tuple[str, Peer]]) -> None:
        """The first of them has had its time. Those that came later have theirs."""
        chosen = self.good_byes[group]
        self.notify(chosen)
        if chosen is first:
            del self.good_byes[group]
        else:
            asyncio.get_running_loop().call_later(GOOD_BYE_S, self._end_good_byes, group, chosen)

    def runs_window(self, peer: Peer) -> bool:
        """Whether a change of any of its groups would reach this member later."""
        return peer in self._windows

    def _join(self, members: Sequence[tuple[str, Peer]]) -> None:
        """To the end of the row, but for those who stand there already."""
        was_empty, row, known = not self._row, self._row, self._in_row
        for member in members:
            if member not in known:
                known.add(member)
                row.append(member)
        if was_empty and row:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _next_turn(self) -> None:
        """Tell as many of the row as one turn of the loop may."""
        for _ in range(min(TURN_MAX, len(self._row))):
            member = self._row.popleft()
            self._in_row.discard(member)
            self._notify_in_windows(*member)
        if self._row:
            asyncio.get_running_loop().call_soon(self._next_turn)

    def _notify_in_windows(self, group: str, connection: Peer) -> bool:
        windows = self._windows.get(connection, {})
        if group in windows:
            windows[group] = True
            return True
        if not _notify(group, connection):
            return False
        self._windows.setdefault(connection, windows)[group] = False
        asyncio.get_running_loop().call_later(WINDOW_S, self._end_window, group, connection)
        return True

    def _end_window(self, group: str, connection: Peer) -> None:
        windows = self._windows[connection]
        changed = windows.pop(group)
        if not windows:
            del self._windows[connection]
        if changed:
            self._notify_in_windows(group, connection)


def _notify(group: str, connection: Peer) -> bool:
    try:
        connection.send_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {"consumerGroup": group})
    except RemotingError as error:
        # Its loss is on the way to connection_lost, which tells the others.
        log.debug("broker.member_not_notified", group=group, peer=connection.peer, reason=str(error))
        return False
    return True
