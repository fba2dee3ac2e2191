"""What the doctor says of sets."""

from dataclasses import replace

import pytest

from aerobee import BrokerNode
from aerobee.admin.set_admin import MemberState
from aerobee_console.checks.checkup import Checkup
from aerobee_console.checks.set_checks import SetFacts, check_set

NOW = 1_000_000
MASTER = MemberState(
    BrokerNode("C", "b", 0, "m:1"),
    is_ours=True,
    is_master=True,
    end_offset=1000,
    slave_count=1,
    in_sync_count=1,
)
SLAVE = MemberState(
    BrokerNode("C", "b", 1, "s:1"),
    is_ours=True,
    end_offset=1000,
    is_linked=True,
    newest_message_ms=NOW - 40_000,
)
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "minInSyncReplicas": "1", "totalReplicas": "1"}


def checks(
    *states: MemberState, settings: dict[str, str] | None = None, masters: dict[str, str] | None = None
) -> list[tuple[str, str]]:
    checkup = Checkup()
    facts = SetFacts("b", masters or {"n:1": "m:1"}, states, SYNC | (settings or {}))
    check_set(checkup, facts, NOW)
    return [(check.status, check.text) for check in checkup.checks]


def test_a_sound_set_has_one_line() -> None:
    assert checks(MASTER, SLAVE) == [("ok", "m:1 is its master, 1 slave follow it")]


CASES: dict[str, tuple[list[MemberState], dict[str, str], str, str]] = {
    "split": ([MASTER, replace(SLAVE, is_master=True)], {}, "fault", "it is split: m:1 and s:1 are both masters"),
    "no master": ([replace(MASTER, error="silent"), SLAVE], {}, "fault", "it has no master that answers"),
    "lost its master": ([MASTER, replace(SLAVE, is_linked=False)], {}, "fault", "does not follow its master"),
    "ahead": ([MASTER, replace(SLAVE, end_offset=1007)], {}, "fault", "has 7 bytes that its master has lost"),
    "far behind": (
        [replace(MASTER, end_offset=1000 + (300 << 20)), SLAVE], {}, "fault", "s:1 is 300 MiB behind"
    ),
    "late": ([replace(MASTER, end_offset=1001), SLAVE], {}, "note", "s:1 is 1 bytes and 40 s behind"),
    "too few copies": (
        [replace(MASTER, in_sync_count=0)], {"minInSyncReplicas": "2"}, "fault",
        "sends are refused: 1 copies are in sync, minInSyncReplicas is 2",
    ),
    "waits in vain": (
        [replace(MASTER, in_sync_count=0), SLAVE], {}, "fault", "sends wait in vain and are answered with code 12"
    ),
    "a member is missing": ([MASTER, SLAVE], {"totalReplicas": "3"}, "note", "2 of 3 members are there"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_what_is_wrong_is_said(case: str) -> None:
    states, settings, status, text = CASES[case]
    (found,) = checks(*states, settings=settings)
    assert found[0] == status
    assert text in found[1]


@pytest.mark.parametrize(
    "states",
    [[MASTER, replace(SLAVE, is_master=True)], [replace(MASTER, error="silent"), SLAVE]],
    ids=["split", "no master"],
)
def test_a_set_that_elects_is_not_told_to_promote_or_follow(states: list[MemberState]) -> None:
    """Both are refused there."""
    checkup = Checkup()
    elected = [replace(state, is_elected=True) for state in states]
    check_set(checkup, SetFacts("b", {"n:1": "m:1"}, elected, SYNC), NOW)
    (found,) = checkup.checks
    assert "it elects one by itself" in found.fix
    assert "aerobee cluster" not in found.fix


def test_nameservers_that_disagree_are_named() -> None:
    (found,) = checks(MASTER, SLAVE, masters={"n:1": "m:1", "n:2": ""})
    assert found == ("fault", "nameservers know different masters: n:1: m:1; n:2: nobody")


def test_who_waits_for_fewer_where_fewer_are_there_is_sound() -> None:
    alone = replace(MASTER, in_sync_count=0)
    assert checks(alone, SLAVE, settings={"enableAutoInSyncReplicas": "true"})[0][0] == "ok"
