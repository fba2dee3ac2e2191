"""Who is in sync, as a master judges it: by what was acknowledged, by bytes, by time."""

from collections.abc import Mapping

from aerobee_broker.election.in_sync import TABLES_S, Chosen, InSync, Linked
from aerobee_broker.lives.seating import SyncRules

RULES = SyncRules(gap_max=1000, catch_up_s=10.0, away_s=1.0)
STORES = {1: "a", 2: "b", 3: "c"}


class Scene:
    """Member 1 is master; time and log are moved by the test."""

    def __init__(self, *present: int, copies_min: int = 1) -> None:
        self.rules = RULES._replace(copies_min=copies_min)
        self.judge = InSync(1, "a")
        self.now = 0.0
        self.present = {1: "a"} | {member: STORES[member] for member in present}
        self.kept = self.end = 0

    def look(
        self,
        linked: Mapping[int, int | Linked],
        stores: Mapping[int, str] = STORES,
        seconds: float = 0.1,
        *,
        takes: bool = True,
    ) -> Chosen:
        self.now += seconds
        links = {
            member: link if isinstance(link, Linked) else Linked(STORES[member], link)
            for member, link in linked.items()
        }
        chosen = self.judge.chosen(self.now, self.present, stores, links, (self.kept, self.end), self.rules)
        if takes:
            self.present = chosen.in_sync
        return chosen


def test_who_has_caught_up_joins_and_comes_when_it_has_what_was_there_then() -> None:
    scene = Scene()
    scene.kept = scene.end = 500
    scene.look({2: 0})
    assert scene.look({2: 499}) == Chosen({1: "a"})
    scene.kept = scene.end = 600
    assert scene.look({2: 500}) == Chosen({1: "a"}, frozenset({2}))
    assert scene.look({2: 599}) == Chosen({1: "a"})  # not where the log ended at the last look
    scene.kept, scene.end = 600, 700
    assert scene.look({2: 650}) == Chosen({1: "a"}, frozenset({2}))
    scene.end = 800
    assert scene.look({2: 750}) == Chosen({1: "a", 2: "b"}, frozenset({2}))
    assert scene.look({2: 800}) == Chosen({1: "a", 2: "b"})


def test_who_joins_comes_with_the_tables_as_they_were_then() -> None:
    """One that had the log alone came, and was elected: a topic whose making had been answered was gone."""
    scene = Scene()
    assert scene.look({2: Linked("b", 0, (-1, 7))}) == Chosen({1: "a"}, frozenset({2}))
    assert scene.look({2: Linked("b", 0, (6, 9))}) == Chosen({1: "a"}, frozenset({2}))
    assert scene.look({2: Linked("b", 0, (7, 9))}) == Chosen({1: "a", 2: "b"}, frozenset({2}))
    assert scene.look({2: Linked("b", 0, (7, 12))}) == Chosen({1: "a", 2: "b"})  # changes wait for it by now


def test_who_cannot_have_the_tables_comes_after_a_while() -> None:
    scene = Scene()
    assert scene.look({2: Linked("b", 0, (-1, 7))}).in_sync == {1: "a"}
    assert scene.look({2: Linked("b", 0, (-1, 8))}, seconds=0.9 * TABLES_S).in_sync == {1: "a"}
    assert scene.look({2: Linked("b", 0, (-1, 9))}, seconds=0.2 * TABLES_S).in_sync == {1: "a", 2: "b"}


def test_a_member_that_does_not_run_or_has_another_store_does_not_come() -> None:
    scene = Scene()
    for _ in range(3):
        assert scene.look({2: 0}, {1: "a"}) == Chosen({1: "a"})
        assert scene.look({2: Linked("new", 0)}) == Chosen({1: "a"})
    scene.look({2: Linked("new", 0)}, {2: "new"})
    assert scene.look({2: Linked("new", 0)}, {2: "new"}).in_sync == {1: "a", 2: "new"}


def test_a_member_that_is_away_for_a_moment_stays() -> None:
    scene = Scene(2)
    scene.look({2: 0})
    assert scene.look({}, seconds=0.9).in_sync == {1: "a", 2: "b"}
    assert scene.look({2: 0}).in_sync == {1: "a", 2: "b"}
    assert scene.look({}, seconds=1.0).in_sync == {1: "a"}


def test_a_member_that_never_came_is_let_go_after_the_same_time() -> None:
    scene = Scene(2)
    assert scene.look({}, seconds=5.0).in_sync == {1: "a", 2: "b"}
    assert scene.look({}, seconds=1.0).in_sync == {1: "a"}


def test_a_member_that_does_not_catch_up_is_let_go() -> None:
    scene = Scene(2)
    for step in range(1, 12):
        scene.end = 10 * step
        assert scene.look({2: step}, seconds=0.99).in_sync == {1: "a", 2: "b"}, step
    assert scene.look({2: 12}, seconds=0.99).in_sync == {1: "a"}


def test_a_member_that_says_nothing_while_there_is_something_to_take_is_let_go_as_if_it_were_away() -> None:
    """A machine that is gone, or a process that stands still, does not hang up; sends waited for it for 15 s."""
    scene = Scene(2, 3)
    scene.look({2: 0, 3: 0}, seconds=100.0)
    scene.look({2: 0, 3: 0}, seconds=100.0)
    scene.end = 500
    assert scene.look({2: 0, 3: 500}).in_sync == {1: "a", 2: "b", 3: "c"}
    assert scene.look({2: 0, 3: 500}, seconds=0.8).in_sync == {1: "a", 2: "b", 3: "c"}
    assert scene.look({2: 0, 3: 500}, seconds=0.2).in_sync == {1: "a", 3: "c"}


def test_a_member_that_is_too_far_behind_is_let_go_at_once() -> None:
    scene = Scene(2, 3)
    scene.end = 1000
    assert scene.look({2: 0, 3: 1}).in_sync == {1: "a", 3: "c"}


def test_a_member_that_has_lost_what_was_acknowledged_is_let_go_at_once() -> None:
    scene = Scene(2)
    scene.kept = scene.end = 100
    assert scene.look({2: 99}).in_sync == {1: "a"}


def test_a_member_with_another_store_is_let_go_at_once() -> None:
    scene = Scene(2)
    assert scene.look({2: Linked("new", 0)}).in_sync == {1: "a"}


def test_one_that_is_not_proposed_yet_is_waited_for_all_the_same() -> None:
    scene = Scene()
    scene.look({2: 0}, takes=False)
    for _ in range(3):
        assert scene.look({2: 0}, takes=False) == Chosen({1: "a", 2: "b"}, frozenset({2}))


def test_who_should_leave_is_kept_while_there_would_be_too_few() -> None:
    """The one that was there last."""
    scene = Scene(2, 3, copies_min=2)
    scene.look({2: 0, 3: 0})
    scene.end = 500
    scene.look({2: 0, 3: 0})
    scene.look({2: 0, 3: 250}, seconds=0.5)
    assert scene.look({2: 0, 3: 250}, seconds=0.5) == Chosen({1: "a", 3: "c"})
    assert scene.look({2: 0, 3: 250}, seconds=0.5) == Chosen({1: "a", 3: "c"}, kept=frozenset({3}))
    assert scene.look({3: 500}) == Chosen({1: "a", 3: "c"})


def test_a_member_whose_disk_is_another_one_is_not_kept() -> None:
    scene = Scene(2, copies_min=2)
    assert scene.look({2: Linked("new", 0)}).in_sync == {1: "a"}


def test_another_member_takes_the_place_of_one_that_is_kept() -> None:
    scene = Scene(2, copies_min=2)
    scene.look({}, seconds=0.1)
    assert scene.look({}, seconds=1.0) == Chosen({1: "a", 2: "b"}, kept=frozenset({2}))
    scene.look({3: 0})
    assert scene.look({3: 0}).in_sync == {1: "a", 3: "c"}
