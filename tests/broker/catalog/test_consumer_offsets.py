"""Consumer offsets against a plain dict, the rule of QUERY_CONSUMER_OFFSET as a table, resets, the file."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aerobee_broker.catalog.consumer_offsets import COMMITS_PER_VERSION, ConsumerOffsets, starting_offset
from aerobee_proto.errors import FormatError
from broker.support import Clock
from turns import TURN_MAX, turn_of

NAMES = st.sampled_from(["T", "U", "g", "h"])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), NAMES, NAMES, st.integers(0, 3), st.integers(-2, 1000)),
        st.tuples(st.just("remove_group"), NAMES),
        st.tuples(st.just("remove_topic"), NAMES),
        st.tuples(st.just("clone"), NAMES, NAMES, NAMES),
    ),
    max_size=30,
)


def make_offsets() -> ConsumerOffsets:
    return ConsumerOffsets(Clock())


@given(STEPS)
def test_offsets_agree_with_a_plain_dict(steps: list[tuple[Any, ...]]) -> None:
    offsets = make_offsets()
    model: dict[tuple[str, str, int], int] = {}
    for name, *arguments in steps:
        before = dict(model)
        if name == "commit":
            group, topic, queue_id, offset = arguments
            if offset >= 0:
                model[topic, group, queue_id] = offset
        elif name == "clone":
            source, target, topic = arguments
            taken = {q: o for (t, g, q), o in before.items() if (t, g) == (topic, source)}
            if taken:
                model = {key: o for key, o in before.items() if key[:2] != (topic, target)}
                model |= {(topic, target, q): o for q, o in taken.items()}
        else:
            place = 1 if name == "remove_group" else 0
            model = {key: o for key, o in before.items() if key[place] != arguments[0]}
        getattr(offsets, name)(*arguments)
    found = {
        (*key.split("@"), queue_id): offset
        for key, queues in offsets.to_json()["offsetTable"].items()
        for queue_id, offset in queues.items()
    }
    assert found == model
    for group in {group for _, group, _ in model} | {"A", "B"}:
        assert offsets.topics_of(group) == sorted({topic for topic, owner, _ in model if owner == group})
    for topic in {topic for topic, _, _ in model}:
        assert offsets.groups_of(topic) == sorted({group for name, group, _ in model if name == topic})
    assert dict(offsets.group_topics()) == {
        group: sorted({topic for topic, owner, _ in model if owner == group}) for _, group, _ in model
    }
    other = make_offsets()
    other.take(other.parse(offsets.to_json()))
    assert other.to_json()["offsetTable"] == offsets.to_json()["offsetTable"]


@pytest.mark.parametrize(
    ("stored", "zero_allowed", "min_offset", "recent", "answer"),
    [
        (7, True, 0, True, 7),
        (0, False, 5, False, 0),
        (None, True, 0, True, 0),
        (None, True, -1, True, 0),
        (None, True, 0, False, None),
        (None, True, 1, True, None),
        (None, False, 0, True, None),
    ],
)
def test_where_a_group_starts(
    stored: int | None, zero_allowed: bool, min_offset: int, recent: bool, answer: int | None
) -> None:
    found = starting_offset(
        stored, zero_allowed=zero_allowed, min_offset=min_offset, first_is_recent=lambda: recent
    )
    assert found == answer


def test_the_log_is_only_asked_when_it_matters() -> None:
    def unexpected() -> bool:
        raise AssertionError("asked")

    assert starting_offset(3, zero_allowed=True, min_offset=0, first_is_recent=unexpected) == 3
    assert starting_offset(None, zero_allowed=True, min_offset=9, first_is_recent=unexpected) is None


class TestResets:
    def test_what_was_pulled_before_a_reset_is_not_in_flight_after_it(self) -> None:
        """A group that was sent back while nobody was online had messages in flight for ever."""
        offsets = make_offsets()
        offsets.commit("g", "T", 0, 3)
        offsets.note_pull("g", "T", 0, 9)
        offsets.note_pull("g", "T", 1, 4)
        offsets.assign_reset("g", "T", 0, 0)
        assert (offsets.pulled("g", "T", 0), offsets.pulled("g", "T", 1)) == (None, 4)

    def test_a_reset_is_what_a_query_answers_until_a_pull_took_it(self) -> None:
        offsets = make_offsets()
        offsets.commit("g", "T", 0, 50)
        offsets.assign_reset("g", "T", 0, 10)
        assert offsets.get("g", "T", 0) == 10
        assert not offsets.commit("g", "T", 0, 51)
        assert offsets.commit("g", "T", 1, 51)
        assert offsets.take_reset("g", "T", 0) == 10
        assert offsets.take_reset("g", "T", 0) is None
        assert offsets.commit("g", "T", 0, 11)
        assert offsets.get("g", "T", 0) == 11

    def test_a_reset_survives_a_restart_as_an_offset(self) -> None:
        offsets = make_offsets()
        offsets.commit("g", "T", 0, 50)
        offsets.assign_reset("g", "T", 0, 10)
        other = make_offsets()
        other.take(other.parse(offsets.to_json()))
        assert other.get("g", "T", 0) == 10

    def test_resets_go_with_their_group(self) -> None:
        offsets = make_offsets()
        offsets.assign_reset("g", "T", 0, 10)
        offsets.remove_group("g")
        assert offsets.take_reset("g", "T", 0) is None


def test_pulls_are_noted_apart_from_commits() -> None:
    offsets = make_offsets()
    offsets.note_pull("g", "T", 0, 9)
    assert offsets.pulled("g", "T", 0) == 9
    assert offsets.get("g", "T", 0) is None
    assert offsets.revision == 0


def test_only_new_values_make_the_file_old_and_some_commits_the_version() -> None:
    offsets = make_offsets()
    for _ in range(COMMITS_PER_VERSION):
        offsets.commit("g", "T", 0, 5)
    assert offsets.revision == 1
    assert offsets.version.counter == 1


def test_keys_of_others_travel_through() -> None:
    content = {"offsetTable": {"T@g@broadcast": {"0": 5}, "T@g": {"0": 1, "1": "2"}}}
    offsets = make_offsets()
    offsets.take(offsets.parse(content))
    assert offsets.to_json()["offsetTable"] == {"T@g@broadcast": {0: 5}, "T@g": {0: 1, 1: 2}}
    assert offsets.group_topics() == {"g": ["T"]}
    assert offsets.groups_of("T") == ["g"]


def test_the_file_of_a_slave_says_that_it_is_one() -> None:
    master, slave, promoted = make_offsets(), make_offsets(), make_offsets()
    slave.become_copy()
    master.take(master.parse(master.to_json()))
    promoted.take(promoted.parse(slave.to_json()))
    assert (master.was_copy, promoted.was_copy) == (False, True)
    assert "copyOfMaster" not in promoted.to_json()


def test_impossible_offsets_in_a_file_are_dropped() -> None:
    offsets = make_offsets()
    offsets.take(offsets.parse({"offsetTable": {"T@g": {"0": -5, "-1": 3, "2": 4, "3": 1 << 64}}}))
    assert offsets.of_group("g", "T") == {2: 4}


@pytest.mark.parametrize(
    "content", [{"offsetTable": []}, {"offsetTable": {"T@g": 5}}, {"offsetTable": {"T@g": {"x": 1}}}]
)
def test_content_of_another_form_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        make_offsets().parse(content)


def test_what_belongs_to_a_name_is_found_without_a_look_at_the_others() -> None:
    """How far all groups are was asked of each group by a walk over the offsets of all: minutes for 10,000 groups."""
    offsets = make_offsets()
    for number in range(5000):
        offsets.commit(f"g{number}", f"T{number % 10}", 0, 1)
        offsets.commit("one", f"T{number}", 0, 1)

    def every_group() -> list[list[str]]:
        return [offsets.topics_of(f"g{number}") for number in range(5000)]

    assert every_group() == [[f"T{number % 10}"] for number in range(5000)]
    assert turn_of(every_group) < TURN_MAX


def test_offsets_are_removed_in_steps_with_what_was_pulled_and_what_is_pending() -> None:
    offsets = make_offsets()
    for number in range(100):
        offsets.commit("g", f"T{number}", 0, 1)
        offsets.note_pull("g", f"T{number}", 0, 2)
    offsets.assign_reset("g", "T1", 0, 0)
    offsets.commit("g@broadcast", "T1", 0, 5)
    assert sum(1 for _ in offsets.removal(group="g")) >= 100
    assert not offsets.topics_of("g")
    assert offsets.pulled("g", "T1", 0) is None
    assert offsets.take_reset("g", "T1", 0) is None
    assert offsets.to_json()["offsetTable"] == {}
    assert dict(offsets.group_topics()) == {}
