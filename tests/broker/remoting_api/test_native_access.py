"""With access control the native engine lets in whom the Python one lets in: who has signed, and may.

The same reads go to brokers of either kind, as in `test_native_sends`; besides files, counters and answers the lines
of the audit log are equal.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_access.plain_acl import read_plain_acl
from aerobee_access.policies import PolicyType, entry_of
from aerobee_access.signature import sign
from aerobee_access.users import Status
from aerobee_broker.broker import Broker
from aerobee_proto.batch import BatchEntry, encode_batch
from aerobee_proto.codes import RequestCode
from aerobee_proto.frames import Command, encode_command
from aerobee_store.faults.errors import StoreError, TooFewCopies
from broker.remoting_api.test_native_sends import Outcome, Step, compare, cut, requests
from broker.support import START_MS
from engines import need_engine
from send_frames import BATCH, V1, V2, Spec, frame_of, frames, usual

MAY, MAY_NOT, WRONG = ("may-send", "a secret"), ("may-read", "another one"), ("may-send", "guessed")
OFF, NOBODY = ("disabled", "a third one"), ("nobody", "a secret")
BOTH = {"authentication_enabled": True, "authorization_enabled": True}

PLAIN = """
accounts:
- accessKey: may-send
  secretKey: a secret
  topicPerms: [Topic-A=PUB, Topic-B=PUB|SUB, New-1=PUB, Multi=PUB]
- accessKey: may-read
  secretKey: another one
  defaultTopicPerm: SUB
- accessKey: disabled
  secretKey: a third one
  whiteRemoteAddress: 10.1.2.*
"""


@pytest.fixture(autouse=True)
def native() -> Iterator[None]:
    """The engine is there, and whoever is refused is refused at once: a test says so where it is otherwise."""
    need_engine("native")
    with patch("aerobee_access.refusals.FREE", 1_000_000):
        yield


def users(broker: Broker) -> None:
    """Who may send to some topics, who may not, and who may not even speak."""
    table = broker.access.table
    for name, secret in (MAY, MAY_NOT):
        table.create_user(name, secret)
    table.create_user(*OFF, status=Status.DISABLE)
    allowed = [entry_of(f"Topic:{name}*", ["Pub"], None, "Allow") for name in ("Topic-", "New-1", "Multi")]
    table.write_acl(MAY[0], [(PolicyType.CUSTOM, allowed)])
    table.write_acl(MAY_NOT[0], [(PolicyType.CUSTOM, [entry_of("*", ["Sub"], None, "Allow")])])


def compared(folder: Path, reads: Sequence[bytes | Step], **more: Any) -> Outcome:
    """As `compare`, with users."""
    if not more.get("acl_enable"):
        reads = [users, *reads]
    return compare(reads, access_key_path=str(folder / "access.key"), **more)


def plain(folder: Path) -> dict[str, Any]:
    """The settings of a broker with accounts of 4.x."""
    path = folder / "plain_acl.yml"
    path.write_text(PLAIN)
    return {"acl_enable": True, "plain_acl_path": str(path)}


def by(user: tuple[str, str] | None, number: int, code: int = V2, **changes: Any) -> Spec:
    """A usual send of this user to one queue."""
    spec = usual(number, queueId="0", **changes)
    spec.user, spec.code = user, code
    if code == BATCH:
        entries = [BatchEntry(0, b"of a batch", f"UNIQ_KEY\x010B{number:08X}{at:02X}\x02") for at in (1, 2)]
        spec.body, spec.fields["properties"] = encode_batch(entries), ""
    return spec


# --- any requests ---------------------------------------------------------------------------------------------------

USERS = st.sampled_from([MAY] * 12 + [MAY_NOT, WRONG, OFF, NOBODY, ("", "a secret"), None])
FORMS = st.sampled_from(["both", "authentication", "authorization", "plain", "official", "open"])


@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.tuples(requests(), USERS), min_size=1, max_size=40), st.lists(st.integers(0, 2**20)), FORMS
)
def test_either_engine_lets_in_the_same(
    tmp_path_factory: pytest.TempPathFactory,
    specs: list[tuple[Spec, tuple[str, str] | None]],
    places: list[int],
    form: str,
) -> None:
    folder = tmp_path_factory.mktemp("access")
    for spec, user in specs:
        spec.user = user
    stream = b"".join(frames([spec for spec, _ in specs]))
    compared(folder, cut(stream, places[:6]), **settings_of(form, folder))


def settings_of(form: str, folder: Path) -> dict[str, Any]:
    if form == "plain":
        return plain(folder)
    if form == "open":
        return {}
    return {
        "authentication_enabled": form != "authorization",
        "authorization_enabled": form != "authentication",
        "auth_compat": "5.3.3" if form == "official" else "",
    }


# --- who has signed, and may ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["both", "authentication", "authorization", "plain", "official"])
@pytest.mark.parametrize("code", [V2, V1, BATCH])
def test_signed_sends_are_the_engine_s(tmp_path: Path, form: str, code: int) -> None:
    """In all codecs, but for the first, which makes the queue ready and is granted what it needs."""
    specs = [by(MAY, number, code) for number in range(12)]
    reads = [frame_of(specs[0], 0), b"".join(frames(specs)[1:])]
    assert compared(tmp_path, reads, **settings_of(form, tmp_path)).native == len(specs) - 1


@pytest.mark.parametrize("form", ["both", "plain"])
def test_the_order_of_all_fields_is_that_of_their_names(tmp_path: Path, form: str) -> None:
    more = {"maxReconsumeTimes": "16", "bname": "broker-a", "SecurityToken": "a token", "defaultTopic": ""}
    for code in (V1, V2):
        sends = frames([by(MAY, number, code, **more) for number in range(7)])
        assert compared(tmp_path, sends, **settings_of(form, tmp_path)).native == len(sends) - 1


@pytest.mark.parametrize("form", ["both", "authentication", "plain"])
@pytest.mark.parametrize("who", [MAY_NOT, WRONG, OFF, NOBODY, None])
def test_who_may_not_is_refused_in_the_middle_of_others(
    tmp_path: Path, form: str, who: tuple[str, str] | None
) -> None:
    specs = [by(MAY, number) for number in range(9)]
    specs[5] = by(who, 5)
    reads = [frame_of(specs[0], 0), b"".join(frames(specs)[1:5]), b"".join(frames(specs)[5:])]
    found = compared(tmp_path, reads, **settings_of(form, tmp_path))
    lets_in = (form == "authentication" and who == MAY_NOT) or (form == "plain" and who == OFF)
    assert found.native >= 4
    assert (5 in found.in_order) is lets_in
    assert [line[0] for line in found.audit].count("refused") == (0 if lets_in else 1)


@pytest.mark.parametrize("part", ["body", "field", "signature"])
def test_what_was_changed_on_the_way_is_refused(tmp_path: Path, part: str) -> None:
    good = frames([by(MAY, number) for number in range(4)])
    raw = bytearray(good[3])
    at = {
        "body": len(raw) - 1,
        "field": raw.index(b"1700000000123") + 12,
        "signature": raw.index(b"Signature") + 12,
    }
    raw[at[part]] ^= 1
    found = compared(tmp_path, [*good[:3], bytes(raw), good[1]], **BOTH)
    assert found.in_order == [0, 1, 2, 1]
    assert found.native == 3
    assert "check signature failed." in found.audit[-1]


def test_what_came_before_a_header_that_is_refused_is_judged_before(tmp_path: Path) -> None:
    """It was refused at once, while the sends before it still waited for their batch."""
    stream = [
        by(MAY, 0),
        by(MAY, 1, topic="Topic-B"),
        by(NOBODY, 2, bornTimestamp="x"),
        by(MAY, 3, topic="Topic-C"),
    ]
    found = compared(tmp_path, [b"".join(frames(stream))], **BOTH)
    assert [(line[0], line[1]) for line in found.audit] == [
        ("granted", MAY[0]),
        ("granted", MAY[0]),
        ("refused", NOBODY[0]),
        ("granted", MAY[0]),
    ]


def test_each_topic_and_user_of_a_connection_is_asked_for_once_the_usual_way(tmp_path: Path) -> None:
    """What is granted to one is not granted to another, nor for another topic."""
    specs = [by(MAY, 0), by(MAY, 1), by(MAY_NOT, 2), by(MAY, 3, topic="Topic-B"), by(MAY, 4, topic="Topic-B")]
    found = compared(tmp_path, [*frames(specs), *frames(specs)], **BOTH)
    assert found.native == 1 + 1 + 4
    assert [line[0] for line in found.audit] == ["granted", "refused", "granted", "refused"]


# --- pulls ----------------------------------------------------------------------------------------------------------

ASYNC = {"flush_disk_type": "ASYNC_FLUSH"}
PULL, LITE = RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE


def readers(broker: Broker) -> None:
    """Who may send may read what it has sent, too."""
    read = [entry_of(name, ["Pub", "Sub"], None, "Allow") for name in ("Topic:Topic-A", "Group:g")]
    broker.access.table.write_acl(MAY[0], [(PolicyType.CUSTOM, read)])


def pull_by(
    user: tuple[str, str] | None,
    number: int,
    *,
    offset: int = 0,
    code: int = PULL,
    codec: int = 0,
    freshness: str | None = None,
    **changes: str,
) -> bytes:
    """A usual pull of this user, with its number as its opaque."""
    fields = {"consumerGroup": "g", "topic": "Topic-A", "queueId": "0", "queueOffset": str(offset)}
    fields |= {"maxMsgNums": "8", "sysFlag": "4", "commitOffset": str(offset), "suspendTimeoutMillis": "0"}
    fields |= {"subscription": "*", "bname": "100 %d"} | changes
    signed = fields if user is None else sign(fields, b"", *user, freshness=freshness)
    return encode_command(Command(code, opaque=number, ext_fields=signed, codec=codec))


def stored(form: str, folder: Path) -> tuple[list[bytes | Step], dict[str, Any]]:
    """Three messages, of which the engine takes two; they may be read. And the settings."""
    more = settings_of(form, folder) | ASYNC
    if form == "plain":
        path = folder / "plain_acl.yml"
        path.write_text(
            PLAIN.replace("Topic-A=PUB,", "Topic-A=PUB|SUB,").replace("  topicPerms", GROUP_PERMS, 1)
        )
    begin: list[bytes | Step] = [] if form == "plain" else [readers]
    return [*begin, *frames([by(MAY, number) for number in range(3)])], more


GROUP_PERMS = "  groupPerms: [g=SUB]\n  topicPerms"


@pytest.mark.parametrize("form", ["both", "authentication", "authorization", "plain", "official"])
@pytest.mark.parametrize("code", [PULL, LITE])
def test_signed_pulls_are_the_engine_s(tmp_path: Path, form: str, code: int) -> None:
    """In all codecs and wherever they go on, but for the first where it has to be granted what it needs."""
    steps, more = stored(form, tmp_path)
    pulls = [
        pull_by(MAY, 90 + number, offset=number % 3, code=code, codec=codec)
        for codec in (0, 1, 2)
        for number in range(3 * codec, 3 * codec + 3)
    ]
    found = compared(tmp_path, [*steps, pulls[0], b"".join(pulls[1:])], **more)
    is_granted = form not in ("authentication", "plain")
    assert found.native == 2 + len(pulls) - is_granted
    assert found.in_order == [0, 1, 2, *range(90, 99)]


@pytest.mark.parametrize("form", ["both", "authentication", "plain"])
@pytest.mark.parametrize("who", [MAY_NOT, WRONG, OFF, NOBODY, None])
def test_who_may_not_read_is_refused_in_the_middle_of_others(
    tmp_path: Path, form: str, who: tuple[str, str] | None
) -> None:
    steps, more = stored(form, tmp_path)
    pulls = [pull_by(who if number == 4 else MAY, 90 + number) for number in range(8)]
    lets_in = who == (OFF if form == "plain" else MAY_NOT)
    found = compared(tmp_path, [*steps, pulls[0], b"".join(pulls[1:])], **more)
    assert found.native >= 2 + 3
    assert (94 in found.in_order) is lets_in
    assert [line[0] for line in found.audit].count("refused") == (0 if lets_in else 1)


@pytest.mark.parametrize("part", ["queueOffset", "Signature"])
def test_a_pull_that_was_changed_on_the_way_is_refused(tmp_path: Path, part: str) -> None:
    steps, more = stored("both", tmp_path)
    good = [pull_by(MAY, 90 + number, offset=1) for number in range(4)]
    raw = bytearray(good[3])
    raw[raw.index(part.encode()) + len(part) + 3] ^= 1
    found = compared(tmp_path, [*steps, *good[:3], bytes(raw), good[1]], **more)
    assert found.in_order == [0, 1, 2, 90, 91, 92, 91]
    assert "check signature failed." in found.audit[-1]
    assert found.native == 2 + 3


def test_a_pull_is_never_served_without_its_gate(tmp_path: Path) -> None:
    steps, more = stored("both", tmp_path)
    pulls = [pull_by(user, 90 + number) for number, user in enumerate([MAY, None, None, WRONG])]
    usual_ones = compared(tmp_path, [*steps, *pulls], **ASYNC)
    assert usual_ones.native == 2 + 4, "the first of them, which makes the group, too"
    found = compared(tmp_path, [*steps, *pulls], **more)
    assert (found.native, found.in_order) == (2, [0, 1, 2, 90])
    assert [line[0] for line in found.audit] == ["granted"] * 2 + ["refused"] * 3


def test_a_pull_that_has_a_name_twice_is_not_judged_by_one_of_them(tmp_path: Path) -> None:
    """Python reads the last of two fields of one name; with the engine it is the same."""
    steps, more = stored("both", tmp_path)
    twice = [
        frame.replace(b'"topic":"Topic-A"', b'"topic":"Topic-B","topic":"Topic-A"', 1)
        for frame in (pull_by(MAY, 90 + number) for number in range(3))
    ]
    pulls = [
        (len(frame) - 4).to_bytes(4, "big") + (len(frame) - 8).to_bytes(4, "big") + frame[8:]
        for frame in twice
    ]
    assert compared(tmp_path, [*steps, *pulls], **more).in_order == [0, 1, 2, 90, 91, 92]


@pytest.mark.parametrize("form", ["both", "plain"])
def test_pulls_count_once_and_again_when_the_engine_has_not_served_them(tmp_path: Path, form: str) -> None:
    """What finds nothing is answered in Python, where its number must not have come before."""

    def numbered(number: int, count: int, *, offset: int = 0, signed_code: int = 11) -> bytes:
        fresh = f"aerobee1:{START_MS}:{'07' * 8}:{count}:{signed_code};"
        return pull_by(MAY, 90 + number, offset=offset, freshness=fresh)

    steps, more = stored(form, tmp_path)
    pulls = [numbered(0, 1), numbered(1, 2), numbered(2, 3), numbered(3, 4, offset=3), numbered(4, 5)]
    pulls += [numbered(5, 3), numbered(6, 4, offset=3), numbered(7, 9), numbered(8, 10, signed_code=361)]
    for reads in (pulls, [pulls[0], b"".join(pulls[1:])]):
        found = compared(tmp_path, [*steps, *reads], **more)
        assert found.in_order == [0, 1, 2, 90, 91, 92, 94, 97]
        assert [line[0] for line in found.audit].count("refused") == 3
        assert found.native >= 2 + 2
    every_one = compared(tmp_path, [*steps, *pulls], **more)
    assert every_one.native == 2 + (4 if form == "both" else 5), (
        "but for the first where it has to be granted"
    )


# --- once -----------------------------------------------------------------------------------------------------------


def fresh(number: int, count: int, *, ms: int = START_MS, challenge: str = "07" * 8, code: int = V2) -> Spec:
    """A send of who may, which says that it is the `count`th of this connection."""
    spec = by(MAY, number)
    spec.freshness = f"aerobee1:{ms}:{challenge}:{count}:{int(code)};"
    return spec


@pytest.mark.parametrize("form", ["both", "authentication", "plain"])
def test_what_counts_once_is_the_engine_s_once(tmp_path: Path, form: str) -> None:
    """What comes again, too late, for another connection, or as another request is refused, whatever came before it."""
    specs = [fresh(number, number + 1) for number in range(6)]
    specs += [fresh(6, 3), fresh(7, 9), fresh(8, 8), fresh(9, 9)]
    specs += [fresh(10, 10, ms=START_MS - 120_000), fresh(11, 10, challenge="-"), fresh(12, 10, code=V1)]
    specs += [fresh(13, 10), by(MAY, 14), fresh(15, 11)]
    for reads in (frames(specs), [frame_of(specs[0], 0), b"".join(frames(specs)[1:])]):
        found = compared(tmp_path, reads, **settings_of(form, tmp_path))
        assert found.in_order == [0, 1, 2, 3, 4, 5, 7, 8, 13, 14, 15]
        assert found.native >= 5
    assert found.native == 7, "behind one that is refused, too"
    found = compared(tmp_path, frames(specs), **settings_of(form, tmp_path))
    assert found.native == 10


def test_who_has_to_sign_the_time_is_let_in_with_it_alone(tmp_path: Path) -> None:
    specs = [fresh(0, 1), fresh(1, 2), by(MAY, 2), fresh(3, 3)]
    found = compared(tmp_path, frames(specs), auth_replay_protection="required", **BOTH)
    assert (found.native, found.in_order) == (2, [0, 1, 3])


def test_where_nobody_looks_it_is_a_field_like_others(tmp_path: Path) -> None:
    specs = [fresh(0, 1), fresh(1, 1), fresh(2, 1)]
    found = compared(tmp_path, frames(specs), auth_replay_protection="off", **BOTH)
    assert (found.native, found.in_order) == (2, [0, 1, 2])


def test_what_could_not_be_written_has_not_been_seen(tmp_path: Path) -> None:
    """The disk is full after the engine has let a send in: it is refused for that, not as one that came before."""

    def full(broker: Broker) -> None:
        packing = broker.parts.store.packing
        patch.object(packing, "append", side_effect=StoreError("no room")).start()

    def room(_: Broker) -> None:
        patch.stopall()

    specs = [fresh(number, number + 1) for number in range(5)]
    sends = frames(specs)
    found = compared(tmp_path, [*sends[:3], full, sends[3], room, sends[4]], **BOTH)
    assert (found.native, found.in_order) == (3, [0, 1, 2, 3, 4])


# --- changes --------------------------------------------------------------------------------------------------------


def denied(broker: Broker) -> None:
    deny = entry_of("Topic:Topic-A", ["Pub"], None, "Deny")
    broker.access.table.write_acl(MAY[0], [(PolicyType.CUSTOM, [deny])])


def other_secret(broker: Broker) -> None:
    broker.access.table.update_user(MAY[0], "a new secret")


def disabled(broker: Broker) -> None:
    broker.access.table.update_user(MAY[0], status=Status.DISABLE)


def deleted(broker: Broker) -> None:
    broker.access.table.delete_user(MAY[0])


def unrelated(broker: Broker) -> None:
    broker.access.table.create_user("somebody else", "secret")


@pytest.mark.parametrize("change", [denied, other_secret, disabled, deleted])
def test_a_change_counts_for_the_next_read_of_a_connection(tmp_path: Path, change: Step) -> None:
    sends = frames([by(MAY, number) for number in range(6)])
    found = compared(tmp_path, [*sends[:3], change, *sends[3:]], **BOTH)
    assert (found.native, found.in_order) == (2, [0, 1, 2])


def test_who_still_may_is_asked_once_more_after_a_change(tmp_path: Path) -> None:
    sends = frames([by(MAY, number) for number in range(6)])
    found = compared(tmp_path, [*sends[:3], unrelated, *sends[3:]], **BOTH)
    assert (found.native, len(found.in_order)) == (4, 6)
    assert [line[0] for line in found.audit] == ["granted", "granted"]


def test_a_change_of_accounts_counts_for_the_next_read(tmp_path: Path) -> None:
    def change(broker: Broker) -> None:
        assert broker.access.plain is not None
        broker.access.plain.acl = read_plain_acl(PLAIN.replace("Topic-A=PUB", "Topic-A=DENY"))

    sends = frames([by(MAY, number) for number in range(6)])
    found = compared(tmp_path, [*sends[:3], change, *sends[3:]], **plain(tmp_path))
    assert (found.native, found.in_order) == (2, [0, 1, 2])


def test_who_guesses_waits_with_either_engine(tmp_path: Path) -> None:
    specs = [by(WRONG if number % 3 == 2 else MAY, number) for number in range(12)]
    with (
        patch("aerobee_access.refusals.FREE", 0),
        patch("aerobee_access.refusals.STEP_S", 0.001),
    ):
        found = compared(tmp_path, frames(specs), **BOTH)
    assert found.in_order == [0, 1, 3, 4, 6, 7, 9, 10]


def test_signatures_of_who_need_not_sign_do_no_harm() -> None:
    sends = frames([by(WRONG, number) for number in range(4)])
    assert compare(sends).native == 3


# --- what a send needs besides --------------------------------------------------------------------------------------


def test_sends_of_a_broker_with_enough_copies_are_the_engine_s() -> None:
    """And while there are too few of them, each is refused."""

    def enough(broker: Broker) -> None:
        broker.parts.store.condition = lambda: None

    def too_few(broker: Broker) -> None:
        def condition() -> None:
            raise TooFewCopies(1, 2)

        broker.parts.store.condition = condition

    sends = frames([usual(4 * number) for number in range(9)])
    found = compare([enough, *sends[:3], too_few, *sends[3:6], enough, *sends[6:]])
    assert (found.native, found.in_order) == (2 + 3, [0, 1, 2, 6, 7, 8])
