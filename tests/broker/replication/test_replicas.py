"""What slaves mean for sends: how many are waited for, which ones count, when nothing is taken."""

from dataclasses import dataclass

import pytest

from aerobee_broker.replication.replicas import Replica, Replicas
from aerobee_broker.settings.config import BrokerConfig, LiveConfig
from aerobee_proto.codes import ResponseCode
from aerobee_store.faults.errors import TooFewCopies

END = 1_000_000


@dataclass
class Link:
    """A slave that has said this much."""

    acked_offset: int
    has_begun: bool = True
    next_offset: int = 0

    @property
    def behind_bytes(self) -> int:
        return END - max(self.acked_offset, 0)


def replicas(*acked: int, **settings: object) -> Replicas:
    config = BrokerConfig.model_validate({"brokerRole": "SYNC_MASTER", "haMaxGapNotInSync": 1000, **settings})
    made = Replicas(LiveConfig(config, now_ms=0), lambda: END)
    for number, offset in enumerate(acked):
        made.joined(Replica(Link(offset), f"10.0.0.{number}:1"))  # type: ignore[arg-type]
    made.advanced()
    return made


@pytest.mark.parametrize(
    ("wanted", "acked", "offset"),
    [
        (1, (), END),
        (2, (), 0),
        (2, (70,), 70),
        (2, (70, 90, 80), 90),
        (3, (70, 90, 80), 80),
        (3, (90,), 0),
        (4, (70, 90, 80), 70),
        (3, (-1, 50), 0),
    ],
)
def test_a_send_waits_for_as_many_slaves_as_the_settings_want(
    wanted: int, acked: tuple[int, ...], offset: int
) -> None:
    assert replicas(*acked, inSyncReplicas=wanted).offset == offset


def test_what_slaves_have_said_stays_true_when_they_leave() -> None:
    made = replicas(70, 90, inSyncReplicas=2)
    best = next(one for one in made.connected if one.link.acked_offset == 90)
    made.left(best)
    assert not made.advanced()
    assert made.offset == 90


def test_those_that_are_far_behind_are_not_in_sync() -> None:
    made = replicas(END, END - 999, END - 1000, 0)
    assert made.in_sync_count == 2
    assert [one.in_sync for one in made.status()] == [True, True, False, False]
    made.connected[0].link.has_begun = False  # type: ignore[misc]
    assert made.in_sync_count == 1


@pytest.mark.parametrize(
    ("acked", "least", "needed"),
    [((END, END), 1, 2), ((END, 0), 1, 1), ((0, 0), 1, 0), ((0, 0), 2, 1), ((), 3, 2)],
)
def test_fewer_are_waited_for_where_that_is_allowed(acked: tuple[int, ...], least: int, needed: int) -> None:
    made = replicas(*acked, inSyncReplicas=3, minInSyncReplicas=least, enableAutoInSyncReplicas=True)
    assert made.needed == needed


def test_nothing_is_taken_while_too_few_are_in_sync() -> None:
    with pytest.raises(TooFewCopies, match="there are 2 with this master, 3 are wanted"):
        replicas(END, 0, inSyncReplicas=3, minInSyncReplicas=3).check_enough()
    replicas(END, END, inSyncReplicas=3, minInSyncReplicas=3).check_enough()
    replicas(inSyncReplicas=3, minInSyncReplicas=1).check_enough()


def test_whoever_waits_too_long_is_told_that_slaves_are_late() -> None:
    made = replicas(inSyncReplicas=2, slaveTimeout=1234)
    assert (made.late_code, made.timeout_ms()) == (ResponseCode.FLUSH_SLAVE_TIMEOUT, 1234)


def named_slave(acked: int, member: int, store: str = "", host: str = "10.0.0.1") -> Replica:
    return Replica(Link(acked), f"{host}:1", member, store)  # type: ignore[arg-type]


def test_a_slave_that_connects_again_counts_once() -> None:
    """The old connection may be half open, and nobody has noticed."""
    made = replicas(inSyncReplicas=3)
    assert made.joined(named_slave(90, 1)) == []
    (old,) = made.connected
    assert made.joined(named_slave(80, 1)) == [old]
    assert not made.advanced()
    assert (made.offset, made.in_sync_count) == (0, 0)
    assert made.joined(named_slave(70, 1, host="10.0.0.2")) == []  # was given the same brokerId
    assert made.advanced()
    assert made.offset == 70
    made.left(old)
    assert len(made.connected) == 2


# --- with an election ---------------------------------------------------------------------------------------------


def elected(acked: dict[int, int], waited_for: set[int], in_sync: set[int], **settings: object) -> Replicas:
    """Slaves by their member numbers."""
    config = BrokerConfig.model_validate({"brokerRole": "SYNC_MASTER", **settings})
    made = Replicas(LiveConfig(config, now_ms=0), lambda: END, is_elected=True)
    for member, offset in acked.items():
        made.joined(Replica(Link(offset), f"10.0.0.{member}:1", member))  # type: ignore[arg-type]
    made.wait_for(frozenset(waited_for), frozenset(in_sync))
    made.advanced()
    return made


@pytest.mark.parametrize(
    ("acked", "waited_for", "offset"),
    [
        ({}, set(), END),
        ({2: 70, 3: 90}, set(), END),
        ({2: 70, 3: 90}, {2}, 70),
        ({2: 70, 3: 90}, {3}, 90),
        ({2: 70, 3: 90}, {2, 3}, 70),
        ({2: 70}, {2, 3}, 0),
        ({}, {2}, 0),
    ],
)
def test_every_member_in_sync_is_waited_for_and_nobody_else(
    acked: dict[int, int], waited_for: set[int], offset: int
) -> None:
    assert elected(acked, waited_for, waited_for).offset == offset


def test_as_many_copies_as_the_settings_want_are_waited_for_too() -> None:
    assert elected({2: 70, 3: 90}, {3}, {3}, inSyncReplicas=3).offset == 70
    assert elected({2: 70}, {2}, {2}, inSyncReplicas=3).offset == 0
    settings: dict[str, object] = {"inSyncReplicas": 3, "enableAutoInSyncReplicas": True}
    assert elected({2: 70}, {2}, {2}, **settings).offset == 70


def test_what_counts_as_in_sync_is_what_the_register_says() -> None:
    made = elected({2: END, 3: 0}, {2, 3}, {3}, inSyncReplicas=3, minInSyncReplicas=3)
    assert [one.in_sync for one in made.status()] == [False, True]
    with pytest.raises(TooFewCopies, match="there are 2 with this master, 3 are wanted"):
        made.check_enough()
    elected({}, {2, 3}, {2, 3}, inSyncReplicas=3, minInSyncReplicas=3).check_enough()


def test_a_member_that_connects_again_counts_for_what_it_has_now() -> None:
    """By its older connection it had more: a new disk, or power failed, and it had not synced that."""
    made = elected({2: 70}, {2}, {2})
    before = made.connected
    assert made.joined(named_slave(90, 2)) == list(before)
    assert made.advanced()
    assert made.offset == 90
    made.joined(named_slave(80, 2, "new disk"))
    made.left(before[0])
    assert [one.link.acked_offset for one in made.connected] == [80]


def test_alone_everything_is_kept_as_it_is_appended_until_somebody_is_waited_for() -> None:
    end = 100
    made = Replicas(
        LiveConfig(BrokerConfig.model_validate({"brokerRole": "SYNC_MASTER"}), now_ms=0), lambda: end
    )
    made.wait_for(frozenset(), frozenset())
    end = 200
    assert made.offset == 200
    made.joined(Replica(Link(150), "10.0.0.2:1", 2))  # type: ignore[arg-type]
    made.wait_for(frozenset({2}), frozenset())
    end = 300
    assert not made.advanced()
    assert made.offset == 200
    made.connected[0].link.acked_offset = 250
    assert made.advanced()
    assert made.offset == 250
