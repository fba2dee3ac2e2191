"""Which of several entries decides."""

import itertools

import pytest

from aerobee_access.decision import Verdict, decide, first_of_official
from aerobee_access.policies import Acl, Action, Entry, PolicyType, entry_of

PUB = frozenset({Action.PUB})


def entry(resource: str, decision: str) -> Entry:
    return entry_of(resource, ["All"], None, decision)


RANKS = ["Topic:orders", "Topic:order*", "Topic:ord*", "Topic:*", "*"]


@pytest.mark.parametrize(("precise", "wide"), list(itertools.combinations(RANKS, 2)))
@pytest.mark.parametrize("decision", ["Allow", "Deny"])
def test_the_more_precise_decides_whatever_came_first(precise: str, wide: str, decision: str) -> None:
    other = "Deny" if decision == "Allow" else "Allow"
    entries = (entry(precise, decision), entry(wide, other))
    expected = Verdict.ALLOWED if decision == "Allow" else Verdict.DENIED
    for order in (entries, entries[::-1]):
        acl = Acl({PolicyType.CUSTOM: order})
        assert decide(acl, "Topic", "orders", PUB, "10.0.0.1") is expected


def test_defaults_count_where_nothing_else_matches() -> None:
    acl = Acl(
        {PolicyType.DEFAULT: (entry("*", "Allow"),), PolicyType.CUSTOM: (entry("Topic:orders", "Deny"),)}
    )
    assert decide(acl, "Topic", "orders", PUB, "10.0.0.1") is Verdict.DENIED
    assert decide(acl, "Topic", "other", PUB, "10.0.0.1") is Verdict.ALLOWED
    assert decide(None, "Topic", "other", PUB, "10.0.0.1") is Verdict.UNMATCHED


def test_the_original_lets_the_entry_decide_that_was_created_later() -> None:
    literal, prefix = entry("Topic:orders", "Deny"), entry("Topic:order*", "Allow")
    assert first_of_official([literal, prefix]) is prefix
    assert first_of_official([prefix, literal]) is literal


def test_the_original_lets_a_wide_allow_win_over_a_precise_deny() -> None:
    literal, all_topics = entry("Topic:orders", "Deny"), entry("Topic:*", "Allow")
    assert first_of_official([literal, all_topics]) is all_topics
