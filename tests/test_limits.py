"""docs/limits.md says what the settings and the source say, and leaves no bound out."""

import limits


def test_every_bound_of_the_table_is_there() -> None:
    for bound in sorted(limits.listed()):
        assert limits.value_of(bound) > 0, bound


def test_every_bound_is_in_the_table_or_said_to_be_none() -> None:
    found = set(limits.found())
    assert len(found) > 60
    assert found - limits.listed() - limits.ELSEWHERE.keys() == set()


def test_what_is_said_to_be_no_bound_is_there_and_not_in_the_table() -> None:
    assert limits.ELSEWHERE.keys() - set(limits.found()) == set()
    assert limits.ELSEWHERE.keys() & limits.listed() == set()


def test_each_kind_of_resource_has_a_bound_in_all() -> None:
    """One of each peer alone is none: peers are many."""
    kinds = {row.kind for row in limits.TABLE}
    assert kinds == {"memory", "descriptors", "event loop", "disk", "threads", "entries", "time"}
    assert {row.kind for row in limits.TABLE if row.all_} == kinds - {"time"}


def test_the_page_shows_the_table() -> None:
    assert limits.PAGE.shown() == limits.page_part(), "run: python tests/limits.py --write"


def test_the_sum_of_memory_is_that_of_its_parts_and_above_what_is_kept_for_clients() -> None:
    for program in ("broker", "nameserver"):
        total = limits.memory_max(program)
        assert f" {total / limits.MIB:,.0f} |" in limits.page_part().partition("| all of it |")[2]
        kept = limits.value_of(f"{program}:maxPeerMemoryBytes")
        assert kept * limits.PEER_SHARE < total < 2 * kept
