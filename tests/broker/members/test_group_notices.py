"""Members are told of changes: at once in small groups, together in large ones."""

import asyncio
from collections.abc import Callable

import pytest

from aerobee_broker.members import group_notices
from aerobee_broker.members.group_notices import LARGE_GROUP, GroupNotices
from aerobee_proto.codes import RequestCode
from broker.support import Peer, notifications

Connect = Callable[[], Peer]


async def test_who_is_gone_is_not_told_and_the_others_are(connect: Connect) -> None:
    notices = GroupNotices()
    gone, there = connect(), connect()
    gone.close()
    assert notices.notify([("g", gone.connection), ("g", there.connection)]) == 1
    assert notifications(there) == ["g"]


async def test_a_small_group_hears_of_each_change_at_once(connect: Connect) -> None:
    notices = GroupNotices()
    peers = [connect() for _ in range(LARGE_GROUP)]
    for _ in range(3):
        assert notices.notify([("g", peer.connection) for peer in peers]) == LARGE_GROUP
    assert [notifications(peer) for peer in peers] == [["g"] * 3] * LARGE_GROUP


async def test_a_large_group_hears_of_the_first_change_at_once_and_of_the_others_together(
    connect: Connect,
) -> None:
    """A thousand members that start together were told half a million times that one more is there."""
    notices = GroupNotices()
    peers = [connect() for _ in range(LARGE_GROUP + 1)]
    for _ in range(5):
        assert notices.notify([("g", peer.connection) for peer in peers]) == LARGE_GROUP + 1
    assert [notifications(peer) for peer in peers] == [["g"]] * (LARGE_GROUP + 1)
    logged = await asyncio.gather(*(peer.next_request() for peer in peers))
    assert {command.code for command in logged} == {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED}
    assert [notifications(peer) for peer in peers] == [[]] * (LARGE_GROUP + 1)


async def test_windows_of_groups_are_apart(connect: Connect) -> None:
    notices = GroupNotices()
    peers = [connect() for _ in range(LARGE_GROUP + 1)]
    for group in ("g", "h", "g"):
        notices.notify([(group, peer.connection) for peer in peers])
    assert notifications(peers[0]) == ["g", "h"]
    assert (await peers[0].next_request()).ext == {"consumerGroup": "g"}
    assert notifications(peers[0]) == []


async def test_a_member_that_leaves_within_its_window(connect: Connect) -> None:
    notices = GroupNotices()
    peers = [connect() for _ in range(LARGE_GROUP + 1)]
    for _ in range(2):
        notices.notify([("g", peer.connection) for peer in peers])
    notifications(peers[1])
    peers[0].close()
    await peers[1].next_request()
    assert not notices.runs_window(peers[0].connection)


async def test_a_very_large_group_is_told_in_several_turns(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of ten thousand members were told in one turn of the event loop that one more is there."""
    notices = GroupNotices()
    monkeypatch.setattr(group_notices, "TURN_MAX", LARGE_GROUP)
    peers = [connect() for _ in range(3 * LARGE_GROUP)]
    assert notices.notify([("g", peer.connection) for peer in peers]) == len(peers)
    logged: list[int] = []
    for _ in range(3):
        logged.append(sum(len(notifications(peer)) for peer in peers))
        await asyncio.sleep(0)
    assert logged == [LARGE_GROUP] * 3


async def test_however_many_changes_there_are_nobody_stands_twice_in_the_row(
    connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each change of a very large group had a row of its own, and each row its share of every turn."""
    notices = GroupNotices()
    monkeypatch.setattr(group_notices, "TURN_MAX", LARGE_GROUP)
    peers = [connect() for _ in range(3 * LARGE_GROUP)]
    for _ in range(10):
        assert notices.notify([("g", peer.connection) for peer in peers]) == len(peers)
    told = [len(notifications(peer)) for peer in peers]
    assert told == [1] * LARGE_GROUP + [0] * 2 * LARGE_GROUP
    await asyncio.sleep(0)
    assert sum(len(notifications(peer)) for peer in peers) == LARGE_GROUP
    # All of them hear of the last change: those who were told at once when their windows end.
    assert {(await peer.next_request()).code for peer in peers[:LARGE_GROUP]} == {
        RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    }


async def test_however_many_say_good_bye_together_one_list_of_a_group_is_kept(connect: Connect) -> None:
    """Each good-bye kept a list of all members for a tenth of a second: 20,000 that leave together, gigabytes."""
    notices = GroupNotices()
    peers = [connect() for _ in range(20)]
    members = [("g", peer.connection) for peer in peers]
    for left in range(1, 19):
        notices.notify_of_good_bye(members[left:])
    notices.notify_of_good_bye([("h", peers[0].connection)])
    assert {group: len(kept) for group, kept in notices.good_byes.items()} == {"g": 2, "h": 1}
    for peer in peers[18:]:
        await peer.next_request()  # of the first
        await peer.next_request()  # and of those that came after it
    await peers[0].next_request()
    assert notices.good_byes == {}
    assert notifications(peers[18]) == []
