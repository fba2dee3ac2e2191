"""The handshake of two brokers of ours: who is followed, and where a log goes on."""

from random import Random
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from aerobee_broker.replication import hello
from aerobee_broker.replication.faults import LinkFault
from aerobee_broker.replication.hello import CutBack, Go, StartOver, Visitor, greet_slave
from aerobee_proto.errors import FormatError
from aerobee_proto.ha_hello import (
    EPOCHS_MAX,
    FRAME_SIZE_MAX,
    Compare,
    Digests,
    Facts,
    Hello,
    HelloDecoder,
    Join,
    Joined,
    Proof,
    encode_message,
    is_hello,
)
from aerobee_store.replicas.epochs import Epoch
from broker.replication.histories import HistoryLog, Talk, member, shaken


def grown(seed: int = 1, count: int = 40, epoch: int = 0) -> HistoryLog:
    log = HistoryLog()
    if epoch:
        log.turn(epoch)
    log.grow(Random(seed), count)
    return log


def kind_of(outcome: object) -> str:
    assert isinstance(outcome, LinkFault), outcome
    return outcome.kind


# --- where the log goes on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("cuts", [None, Random(1)], ids=["whole", "in pieces"])
def test_a_slave_that_is_behind_goes_on(cuts: Random | None) -> None:
    master = grown()
    slave = master.copy(25)
    talk = Talk(slave, master, cuts=cuts)
    assert talk.run() == Go([], True)
    assert talk.visitor == Visitor(1, "store-1", slave.end, True, True)


@pytest.mark.parametrize("who", ["slave", "master"])
def test_who_knows_version_1_alone_hears_and_says_nothing_of_readers(who: str) -> None:
    master = grown()
    talk = Talk(master.copy(25), master, of_version_1=who)
    assert talk.run() == Go([], says_confirmed=False)
    if who == "slave":  # else it is another program that would have to know
        assert isinstance(talk.visitor, Visitor)
        assert not talk.visitor.hears_confirmed


def test_a_slave_that_has_all_of_it_goes_on_and_an_empty_one_begins() -> None:
    master = grown(epoch=3)
    assert shaken(master.copy(), master, of_master=member(epoch=3)) == Go([Epoch(3, 0)], True)
    assert shaken(HistoryLog(), master, of_master=member(epoch=3)) == Go([Epoch(3, 0)], True)
    assert shaken(HistoryLog(), HistoryLog()) == Go([], True)
    master.clean(master.borders[20])
    assert shaken(HistoryLog(), master) == Go([Epoch(3, 0)], True)


def test_an_old_master_is_cut_back_to_where_the_new_one_began() -> None:
    old = grown(epoch=1)
    new = old.copy(30)
    new.turn(2)
    new.grow(Random(5), 10)
    assert shaken(old, new, of_master=member(epoch=2)) == CutBack(new.borders[30])
    old.cut(new.borders[30])
    assert shaken(old, new, of_master=member(epoch=2)) == Go(new.epochs, True)


def test_what_an_old_master_has_is_cut_also_when_the_new_one_wrote_nothing_yet() -> None:
    old = grown(epoch=1)
    new = old.copy(30)
    new.turn(2)
    assert shaken(old, new, of_master=member(epoch=2)) == CutBack(new.borders[30])


@pytest.mark.parametrize("epoch", [0, 4])
def test_what_a_master_lost_of_its_own_epoch_is_not_taken_from_its_slave(epoch: int) -> None:
    """It may have been acknowledged because the slave had it."""
    slave = grown(epoch=epoch)
    lost = slave.copy(30)
    assert kind_of(shaken(slave, lost, of_master=member(epoch=epoch))) == "ahead"
    lost.grow(Random(6), 20)
    assert kind_of(shaken(slave, lost, of_master=member(epoch=epoch))) == "ahead"


def test_a_log_with_nothing_in_common_is_never_cut_to_nothing() -> None:
    slave, master = grown(1), grown(2)
    assert kind_of(shaken(slave, master, of_master=member(epoch=7))) == "stranger"
    assert kind_of(shaken(slave, HistoryLog(), of_master=member(epoch=7))) == "stranger"
    master.turn(7)
    slave.epochs = [Epoch(3, 0)]
    assert kind_of(shaken(slave, master, of_master=member(epoch=7))) == "stranger"


def test_what_the_first_master_had_alone_is_given_up_for_one_that_began_with_nothing() -> None:
    """It was in sync with an empty log, so nothing of it was ever acknowledged; unless an operator has chosen it: what
    the first one had was lost, and without a word."""
    slave, master = grown(1), grown(2)
    slave.epochs, master.epochs = [Epoch(1, 0)], [Epoch(2, 0)]
    assert kind_of(shaken(slave, master, of_master=member(epoch=2))) == "stranger"
    slave.is_elected = True
    assert shaken(slave, master, of_master=member(epoch=2)) == StartOver()
    slave.epochs = [Epoch(1, 0), Epoch(2, slave.borders[3])]
    master.epochs = [Epoch(3, 0)]
    assert kind_of(shaken(slave, master, of_master=member(epoch=3))) == "stranger"


def test_what_two_elected_masters_wrote_alone_is_given_up_in_turn() -> None:
    """Both disks fail before anything is copied, one after the other: each begins with nothing of what the other one
    has. The set stood still for good, though nothing in either log was ever acknowledged."""
    slave, master = grown(1), grown(2)
    slave.is_elected = True
    slave.epochs, master.epochs = [Epoch(2, 0)], [Epoch(1, 0), Epoch(3, master.borders[4])]
    assert shaken(slave, master, of_master=member(epoch=3)) == StartOver()
    assert kind_of(shaken(slave, master, of_master=member(epoch=2))) == "stranger", "it is no newer master"
    slave.epochs = [Epoch(1, 0), Epoch(3, slave.borders[3])]
    master.epochs = [Epoch(2, 0), Epoch(4, master.borders[4])]
    assert shaken(slave, master, of_master=member(epoch=4)) == StartOver()
    slave.is_elected = False
    assert kind_of(shaken(slave, master, of_master=member(epoch=4))) == "stranger", "an operator chose"
    slave.is_elected = True
    master.epochs = [Epoch(4, 0), Epoch(5, master.borders[4])]
    assert kind_of(shaken(slave, master, of_master=member(epoch=5))) == "stranger", "it may be a new disk"
    master.epochs = [Epoch(1, 0), Epoch(4, master.borders[4])]
    assert kind_of(shaken(slave, master, of_master=member(epoch=4))) == "stranger", "an epoch is in both"


def test_a_slave_that_needs_what_is_deleted_starts_over() -> None:
    master = grown(epoch=1)
    slave = master.copy(5)
    bare = master.copy(5)
    bare.epochs = []
    master.clean(master.borders[20])
    assert shaken(slave, master, of_master=member(epoch=1)) == StartOver()
    assert kind_of(shaken(bare, master, of_master=member(epoch=1))) == "stranger"
    master.epochs = []
    assert kind_of(shaken(bare, master)) == "too_old"
    master.store = "the master's"
    assert kind_of(shaken(bare, master)) == "too_old"
    bare.store = "of another master"
    assert kind_of(shaken(bare, master)) == "too_old"
    bare.store = master.store
    assert shaken(bare, master) == StartOver()
    unfilled = HistoryLog(master.begin - 5)
    assert shaken(unfilled, master) == StartOver()


def test_a_slave_that_ends_where_the_master_begins_goes_on() -> None:
    master = grown(epoch=1)
    slave = master.copy(20)
    master.clean(slave.end)
    assert shaken(slave, master, of_master=member(epoch=1)) == Go([Epoch(1, 0)], True)


def test_a_damaged_place_is_not_cut_away_where_epochs_say_that_it_belongs_to_both() -> None:
    master = grown(epoch=1)
    slave = master.copy(30)
    slave.data[-5] ^= 1
    master.turn(2)
    master.grow(Random(9), 5)
    fault = shaken(slave, master, of_master=member(epoch=2))
    assert kind_of(fault) == "damaged"


@pytest.mark.parametrize("epoch", [0, 4])
@pytest.mark.parametrize("numbers", [(20,), (29,), (20, 25), (20, 21, 29), (27, 28, 29)])
def test_a_slave_that_is_damaged_is_cut_back_to_there_when_its_master_has_all_of_it(
    epoch: int, numbers: tuple[int, ...]
) -> None:
    """Power failed, and later pages of the file were on the disk before earlier ones."""
    master = grown(epoch=epoch)
    slave = master.copy(30)
    for number in numbers:
        slave.damage(number)
    number = numbers[0]
    slave.is_counted_on = True  # it would take the seat with less than it has said that it has
    fault = shaken(slave, master, of_master=member(epoch=epoch))
    assert (kind_of(fault), "when the set does not count on it" in str(fault)) == ("damaged", True)
    slave.is_counted_on = False
    assert shaken(slave, master, of_master=member(epoch=epoch)) == CutBack(slave.borders[number])
    slave.cut(slave.borders[number])
    assert isinstance(shaken(slave, master, of_master=member(epoch=epoch)), Go)


@pytest.mark.parametrize("epoch", [0, 4])
def test_a_slave_whose_very_first_bytes_are_damaged_begins_anew(epoch: int) -> None:
    """Power failed while it copied for the first time. It was a stranger for good, though what is sound in it is the
    master's."""
    master = grown(epoch=epoch)
    slave = master.copy(30)
    slave.damage(0)
    slave.damage(5)
    slave.is_counted_on = True
    assert kind_of(shaken(slave, master, of_master=member(epoch=epoch))) == "damaged"
    slave.is_counted_on = False
    assert shaken(slave, master, of_master=member(epoch=epoch)) == StartOver()
    slave.data[-1] ^= 1
    assert kind_of(shaken(slave, master, of_master=member(epoch=epoch))) == "stranger", (
        "it has others behind it"
    )
    slave.data[-1] ^= 1
    slave.damaged = [(0, slave.end)]
    assert kind_of(shaken(slave, master, of_master=member(epoch=epoch))) == "stranger", (
        "nothing in it is sound"
    )


@pytest.mark.parametrize(
    "why",
    ["the master has less", "it has others behind it", "it has others in between", "nobody knows of it"],
)
def test_a_damaged_slave_keeps_what_its_master_has_not(why: str) -> None:
    master = grown(epoch=4)
    slave = master.copy(30)
    slave.damage(20)
    if why == "it has others in between":
        slave.data[slave.borders[23] - slave.begin] ^= 1
        slave.damage(27)
    elif why == "the master has less":
        master = master.copy(29)
    elif why == "it has others behind it":
        slave.data[-1] ^= 1
    else:
        slave.damaged.clear()
    assert kind_of(shaken(slave, master, of_master=member(epoch=4))) == "ahead"


def test_histories_longer_than_what_is_compared_at_once() -> None:
    random = Random(11)
    old = HistoryLog()
    old.grow(random, 3000, 2000)
    new = old.copy(1234)
    new.turn(1)
    new.grow(random, 2000, 2000)
    talk = Talk(old, new, of_master=member(epoch=1))
    assert talk.run() == CutBack(old.borders[1234])
    compared = [
        range_ for _, message in talk.said if isinstance(message, Compare) for range_ in message.ranges
    ]
    assert sum(end - begin for begin, end in compared) < 8 << 20
    assert len(talk.said) < 30


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_any_two_members_agree_after_one_cut(seed: int) -> None:
    """A set takes turns; each member has what its last master gave it, or wrote alone before it lost its place."""
    random = Random(seed)
    logs = [HistoryLog() for _ in range(3)]
    for log in logs:
        log.is_elected = random.random() < 0.5
    epoch = 0
    for _ in range(random.randrange(1, 7)):
        epoch += 1
        master = random.choice([log for log in logs if log.end == max(logs, key=lambda log: log.end).end])
        master.turn(epoch)
        for log in logs:
            if log is not master and random.random() < 0.8:
                outcome = shaken(log, master, of_master=member(epoch=epoch))
                expected = log.common_end(master)
                if isinstance(outcome, CutBack):
                    assert outcome.offset == expected < log.end
                    log.cut(outcome.offset)
                    outcome = shaken(log, master, of_master=member(epoch=epoch))
                elif isinstance(outcome, LinkFault):
                    assert outcome.kind == "stranger"
                    assert expected == 0 < log.end
                    continue
                elif isinstance(outcome, StartOver):
                    assert expected == 0 < log.end
                    log.cut(0)
                    log.epochs = []
                    outcome = shaken(log, master, of_master=member(epoch=epoch))
                assert isinstance(outcome, Go)
                assert log.end == expected or not log.end
                count = random.randrange(len(master.borders) - len(log.borders) + 1) + len(log.borders) - 1
                log.data, log.borders = master.copy(count).data, master.borders[: count + 1]
                log.epochs = list(outcome.epochs)
        master.grow(random, random.choice((0, 1, 3, 20)))


# --- who is followed, and who is served ----------------------------------------------------------------------


def test_a_master_of_an_older_epoch_is_not_followed_and_hears_of_the_newer_one() -> None:
    master = grown(epoch=3)
    talk = Talk(master.copy(10), master, of_slave=member(1, epoch=5), of_master=member(epoch=3))
    fault = talk.run()
    assert kind_of(fault) == "replaced"
    assert isinstance(talk.visitor, LinkFault)
    assert talk.visitor.epoch == 5
    assert not [message for _, message in talk.said if isinstance(message, Facts)]


def test_a_slave_looks_for_itself_whether_its_master_was_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hello, "_unfit", lambda me, said: None)
    master = grown(epoch=3)
    talk = Talk(master.copy(10), master, of_slave=member(1, epoch=5), of_master=member(epoch=3))
    assert kind_of(talk.run()) == "fenced"
    assert kind_of(talk.visitor) == "fenced"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"broker_name": "bills"}, "stranger"),
        ({"cluster": "Other"}, "stranger"),
        ({"file_size": 1 << 30}, "file_size"),
        ({"member": 0, "epoch": 2}, "member"),
    ],
)
def test_who_is_of_another_set_or_form_gets_nothing(change: dict[str, Any], kind: str) -> None:
    talk = Talk(HistoryLog(), grown(), of_slave=member(1, **change), of_master=member(0, epoch=2))
    assert kind_of(talk.run()) == kind
    assert kind_of(talk.visitor) == kind
    assert [type(message).__name__ for _, message in talk.said] == ["Hello", "Refusal"]


@pytest.mark.parametrize(
    ("of_slave", "of_master", "is_served"),
    [
        (b"one", b"one", True),
        (None, None, True),
        (b"one", b"two", False),
        (None, b"two", False),
        (b"one", None, False),
    ],
)
def test_both_have_to_know_the_secret(
    of_slave: bytes | None, of_master: bytes | None, is_served: bool
) -> None:
    slave, master = grown().copy(10), grown()
    talk = Talk(slave, master, of_slave=member(1, secret=of_slave), of_master=member(0, secret=of_master))
    outcome = talk.run()
    if is_served:
        assert outcome == Go([], True)
        return
    assert kind_of(outcome) == "credentials"
    said = {type(message).__name__ for _, message in talk.said}
    assert said <= {"Hello", "Challenge"}, "the slave hangs up at once"


def test_a_fake_slave_learns_nothing_of_the_log() -> None:
    """It says what the slave says, and cannot prove that it is one; nor with a proof that it has heard before."""
    master = grown()
    heard = Talk(
        master.copy(3), master, of_slave=member(1, secret=b"one"), of_master=member(0, secret=b"one")
    )
    assert isinstance(heard.run(), Go)
    (old,) = [message for _, message in heard.said if isinstance(message, Proof)]
    for proof in (b"", b"x" * 32, old.proof):
        flow = greet_slave(member(0, secret=b"one"), master.span, b"n" * 32)
        next(flow)
        said = [flow.send(Hello(1, "Cluster", "orders", 1, "store-1", 0, 1 << 20, b"s" * 32))]
        said.append(flow.send(None))
        said.append(flow.send(Proof(proof)))
        with pytest.raises(LinkFault, match="innerClientAuthenticationCredentials"):
            flow.send(None)
        assert not any(isinstance(getattr(step, "message", None), Facts) for step in said)


def test_a_master_looks_for_itself_whether_the_slave_is_a_copy() -> None:
    master = grown()
    for begin, offset, digest in ((0, 100, b"x" * 16), (0, master.end + 1, b""), (50, 10, b""), (0, 50, b"")):
        flow = greet_slave(member(0), master.span, b"n" * 32)
        next(flow)
        flow.send(Hello(1, "Cluster", "orders", 1, "store-1", 0, 1 << 20, b"s" * 32))
        flow.send(None)
        flow.send(Proof())
        flow.send(None)
        step: Any = flow.send(Join(begin, offset, digest))
        if isinstance(step, hello.Digest):
            step = flow.send(master.digests(step.ranges))
        assert step.message.kind == "diverged"
        with pytest.raises(LinkFault, match="not this one"):
            flow.send(None)


def test_a_slave_that_never_has_enough_is_hung_up_on() -> None:
    flow = greet_slave(member(0), grown().span, b"n" * 32)
    next(flow)
    flow.send(Hello(1, "Cluster", "orders", 1, "store-1", 0, 1 << 20, b"s" * 32))
    for answer in (None, Proof(), None):
        flow.send(answer)
    round_of_it: tuple[Any, ...] = (Compare([(0, 1 << 20)]), [b""], None)
    with pytest.raises(LinkFault, match="more of the log compared"):
        _send_all(flow, round_of_it * 1000)


def _send_all(flow: Any, answers: tuple[Any, ...]) -> None:
    for answer in answers:
        flow.send(answer)


# --- what is said --------------------------------------------------------------------------------------------


def test_the_first_byte_tells_our_slaves_from_others() -> None:
    assert is_hello(encode_message(Hello(1, "", "", 1, "", 0, 0, b"s" * 32)))
    assert not is_hello((2**63 - 1).to_bytes(8, "big"))
    assert not is_hello(bytes(1))


@given(st.binary(max_size=200))
@example(b'{"is":"\xff"}')
@example(b'["\xff"]')
def test_any_bytes_are_messages_or_one_error(data: bytes) -> None:
    framed = b"\xc1EROBEE\x01" + len(data).to_bytes(4, "big") + data
    for said in (data, framed):
        decoder = HelloDecoder()
        decoder.feed(said)
        try:
            while decoder.next() is not None:
                pass
        except FormatError:
            pass


def test_the_largest_messages_fit() -> None:
    epochs = [(2**31 - 1, 2**63 - 1)] * EPOCHS_MAX
    for message in (Joined(1, epochs), Facts(0, 2**63 - 1, epochs), Digests([b"x" * 16] * 64)):
        frame = encode_message(message)
        assert len(frame) <= FRAME_SIZE_MAX
        decoder = HelloDecoder()
        decoder.feed(frame + b"behind it")
        assert decoder.next() == message
        assert bytes(decoder.rest) == b"behind it"
