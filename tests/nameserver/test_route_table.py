"""The route table, rule by rule."""

from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aerobee_nameserver import route_table
from aerobee_nameserver.route_table import (
    Registered,
    Registration,
    Removal,
    RouteLimits,
    RouteStatistics,
    RouteTable,
    TopicQueues,
    share_size,
)
from aerobee_proto.bodies import DataVersion
from aerobee_proto.codes import Perm, ResponseCode
from aerobee_proto.errors import LimitReached, RequestError
from aerobee_remoting.peers.peer_memory import PEER_LIMIT, TOTAL_LIMIT, PeerMemory
from aerobee_service.turns.slices import at_once

T1 = {"T1": TopicQueues(4, 4, Perm.READ_WRITE)}
TWO = T1 | {"T2": TopicQueues(8, 8, Perm.READ_WRITE)}


def version(counter: int = 1, state: int = 0) -> DataVersion:
    return DataVersion(counter=counter, state_version=state, timestamp=1_700_000_000_000)


def registration(**changes: Any) -> Registration:
    facts: dict[str, Any] = {
        "cluster": "c1",
        "broker_name": "b-a",
        "broker_id": 0,
        "broker_addr": "10.0.0.7:10911",
        "ha_server_addr": "10.0.0.7:10912",
        "data_version": version(),
        "topics": TWO,
        "acting_master": False,
    }
    return Registration(**facts | changes)


def slave(number: int = 1, **changes: Any) -> Registration:
    host = f"10.0.1.{number}"
    facts = {"broker_id": number, "broker_addr": f"{host}:10911", "ha_server_addr": f"{host}:10912"}
    return registration(**facts | changes)


class Table:
    """A table whose invariants are walked after every step."""

    def __init__(self, **options: Any) -> None:
        self.routes = RouteTable(**options)

    def register(self, new: Registration, *, now_ms: int = 0, connection: str = "") -> Registered:
        done = self.routes.register(new, now_ms=now_ms, connection=connection or new.broker_addr)
        self.routes.check()
        return done

    def refused(self, new: Registration) -> RequestError:
        before = self.picture()
        with pytest.raises(RequestError) as caught:
            self.register(new)
        assert self.picture() == before
        self.routes.check()
        return caught.value

    def unregister(self, new: Registration) -> Removal | None:
        removal = self.routes.unregister(new.cluster, new.broker_addr)
        self.routes.check()
        return removal

    def addrs(self, topic: str = "T1", broker_name: str = "b-a") -> dict[int, str] | None:
        route = self.routes.route(topic)
        if route is None:
            return None
        (data,) = [data for data in route.broker_datas if data.broker_name == broker_name]
        return dict(data.broker_addrs)

    def perm(self, topic: str = "T1", broker_name: str = "b-a") -> int:
        route = self.routes.route(topic)
        assert route is not None
        (data,) = [data for data in route.queue_datas if data.broker_name == broker_name]
        return data.perm

    def picture(self) -> tuple[Any, ...]:
        topics = at_once(self.routes.listing())
        routes = [route.to_bytes() for topic in topics if (route := self.routes.route(topic))]
        return topics, routes, at_once(self.routes.describing()).to_bytes(), self.routes.statistics()


@pytest.fixture
def table() -> Table:
    return Table()


# --- registration, step by step ---------------------------------------------------------------------------------


def test_a_new_broker_is_first_and_its_topics_get_routes(table: Table) -> None:
    done = table.register(registration())
    assert done == Registered(first=True, topics_changed=2)
    assert at_once(table.routes.listing()) == ["T1", "T2"]
    assert table.addrs() == {0: "10.0.0.7:10911"}
    assert at_once(table.routes.describing()).cluster_addr_table == {"c1": ["b-a"]}


def test_an_address_under_another_id_moves(table: Table) -> None:
    table.register(registration())
    table.register(slave(1))
    table.unregister(registration())
    table.register(slave(1, broker_id=0))
    assert table.addrs() == {0: "10.0.1.1:10911"}


def test_a_slave_that_becomes_master_is_a_smaller_id(table: Table) -> None:
    table.register(slave(1))
    done = table.register(slave(1, broker_id=0))
    assert done.change is not None
    assert done.change.min_broker_id == 0


def test_an_address_under_another_name_moves_and_leaves_no_ghost(table: Table) -> None:
    table.register(registration())
    table.register(registration(broker_name="b-b", topics={"X": T1["T1"], "Y": T1["T1"]}))
    assert at_once(table.routes.listing()) == ["X", "Y"]
    assert list(at_once(table.routes.describing()).broker_addr_table) == ["b-b"]


def test_an_older_state_is_refused_without_an_error_and_forgotten(table: Table) -> None:
    table.register(registration(data_version=version(state=5)))
    other = registration(broker_addr="10.0.0.9:10911", data_version=version(state=4))
    assert table.register(other) == Registered(accepted=False)
    assert table.addrs() == {0: "10.0.0.7:10911"}


def test_an_older_state_loses_the_place_it_had(table: Table) -> None:
    table.register(registration(data_version=version(state=5)))
    table.register(slave(1))
    done = table.register(slave(1, broker_id=0, data_version=version(state=4)))
    assert not done.accepted
    assert table.addrs() == {0: "10.0.0.7:10911"}


@pytest.mark.parametrize("state", [5, 6])
def test_the_same_or_a_newer_state_takes_the_place(table: Table, state: int) -> None:
    table.register(registration(data_version=version(state=5)))
    done = table.register(registration(broker_addr="10.0.0.9:10911", data_version=version(state=state)))
    assert done.replaced_addr == "10.0.0.7:10911"
    assert table.addrs() == {0: "10.0.0.9:10911"}
    assert not table.routes.heartbeat("c1", "10.0.0.7:10911", 1)


def test_an_unknown_broker_with_one_topic_is_refused(table: Table) -> None:
    refused = table.refused(registration(topics=T1))
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "register broker failed" in refused.remark


def test_an_unknown_broker_without_topics_is_taken(table: Table) -> None:
    assert table.register(registration(topics={})).first
    assert at_once(table.routes.listing()) == []


def test_a_known_broker_may_send_the_one_topic_that_changed(table: Table) -> None:
    table.register(registration())
    table.register(registration(topics={"T3": T1["T1"]}, data_version=version(2)))
    assert at_once(table.routes.listing()) == ["T1", "T2", "T3"]


def test_topics_change_only_with_the_data_version(table: Table) -> None:
    table.register(registration())
    wider = {"T1": TopicQueues(16, 16, Perm.READ_WRITE), "T2": TWO["T2"]}
    table.register(registration(topics=wider))
    route = table.routes.route("T1")
    assert route is not None
    assert route.queue_datas[0].write_queue_nums == 4
    assert table.register(registration(topics=wider, data_version=version(2))).topics_changed == 1
    route = table.routes.route("T1")
    assert route is not None
    assert route.queue_datas[0].write_queue_nums == 16


def test_a_missing_topic_comes_back_under_the_same_version(table: Table) -> None:
    table.register(registration())
    at_once(table.routes.deleting_topic("T1"))
    table.register(registration())
    assert at_once(table.routes.listing()) == ["T1", "T2"]


def test_a_slaves_topics_do_not_count_while_the_master_lives(table: Table) -> None:
    table.register(registration())
    table.register(slave(1, topics=TWO | {"T3": T1["T1"]}))
    assert at_once(table.routes.listing()) == ["T1", "T2"]


def test_the_smallest_slave_speaks_when_there_is_no_master(table: Table) -> None:
    table.register(slave(1))
    table.register(slave(2, topics=TWO | {"T3": T1["T1"]}))
    assert at_once(table.routes.listing()) == ["T1", "T2"]
    assert table.perm() == Perm.READ_WRITE


def test_a_slave_of_an_old_version_never_speaks(table: Table) -> None:
    table.register(slave(1, acting_master=None))
    assert at_once(table.routes.listing()) == []


def test_an_acting_master_is_read_only(table: Table) -> None:
    table.register(slave(1, acting_master=True))
    assert table.perm() == Perm.READ


def test_a_slave_learns_its_master(table: Table) -> None:
    assert table.register(slave(1)).master_addr is None
    table.register(registration())
    done = table.register(slave(1))
    assert (done.master_addr, done.master_ha_addr) == ("10.0.0.7:10911", "10.0.0.7:10912")


def test_a_smaller_id_is_announced_to_the_others(table: Table) -> None:
    table.register(slave(2))
    table.register(slave(1))
    done = table.register(registration())
    assert done.change is not None
    assert (done.change.min_broker_id, done.change.min_broker_addr) == (0, "10.0.0.7:10911")
    assert done.change.offline_broker_addr is None
    assert done.change.notified_addrs == ("10.0.1.1:10911", "10.0.1.2:10911")
    assert table.register(registration()).change is None
    assert table.register(slave(3)).change is None


def test_unlisted_topics_go_only_when_the_setting_says_so() -> None:
    for drop, topics in ((False, ["T1", "T2", "T3"]), (True, ["T2", "T3"])):
        table = Table(drop_unlisted_topics=drop)
        table.register(registration())
        listed = {"T2": TWO["T2"], "T3": T1["T1"]}
        table.register(registration(topics=listed, data_version=version(2)))
        assert at_once(table.routes.listing()) == topics


def test_a_name_of_another_cluster_is_refused_and_told_where_it_lives(table: Table) -> None:
    table.register(registration())
    refused = table.refused(registration(cluster="c2", broker_addr="10.0.0.9:10911"))
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "belongs to cluster c1 (10.0.0.7:10911)" in refused.remark


def test_the_number_of_brokers_is_bounded() -> None:
    table = Table(limits=RouteLimits(brokers_max=1))
    table.register(registration())
    assert "maxBrokers is 1" in table.refused(slave(1)).remark
    table.register(registration())


def test_the_number_of_topics_is_bounded() -> None:
    table = Table(limits=RouteLimits(topics_max=2))
    table.register(registration())
    more = registration(topics={"T3": T1["T1"]}, data_version=version(2))
    assert "there would be 3 topics, maxTopics is 2" in table.refused(more).remark
    table.register(registration(data_version=version(2)))


# --- life and death ---------------------------------------------------------------------------------------------


def test_silence_longer_than_the_time_out_removes_a_broker(table: Table) -> None:
    table.register(registration(timeout_ms=1_000), now_ms=5_000)
    assert list(table.routes.expiring(6_000)) == []
    (removal,) = list(table.routes.expiring(6_001))
    assert (removal.broker_addr, removal.connection, removal.topics_removed) == (
        "10.0.0.7:10911",
        "10.0.0.7:10911",
        2,
    )
    table.routes.check()
    assert at_once(table.routes.listing()) == []


SIGNS_OF_LIFE: dict[str, Callable[[RouteTable], object]] = {
    "registration": lambda routes: routes.register(registration(), now_ms=100_000, connection="x"),
    "heartbeat": lambda routes: routes.heartbeat("c1", "10.0.0.7:10911", 100_000),
    "version query": lambda routes: routes.query_data_version("c1", "10.0.0.7:10911", version(9), 100_000),
}


@pytest.mark.parametrize("sign", SIGNS_OF_LIFE.values(), ids=SIGNS_OF_LIFE)
def test_every_sign_of_life_counts(table: Table, sign: Callable[[RouteTable], object]) -> None:
    table.register(registration(), now_ms=0)
    sign(table.routes)
    assert list(table.routes.expiring(220_000)) == []
    assert len(list(table.routes.expiring(220_001))) == 1


def test_a_lost_connection_removes_its_brokers_at_once(table: Table) -> None:
    table.register(registration(), connection="one")
    table.register(slave(1), connection="one")
    table.register(slave(2), connection="two")
    removed = list(table.routes.losing("one"))
    table.routes.check()
    assert [removal.broker_id for removal in removed] == [1, 0]
    assert [removal.change and removal.change.min_broker_id for removal in removed] == [None, 2]
    assert table.addrs() == {2: "10.0.1.2:10911"}
    assert not table.routes.has_connection("one")


def test_a_broker_that_came_again_on_a_new_connection_survives_the_old_ones_end(table: Table) -> None:
    table.register(registration(), connection="old")
    table.register(registration(), connection="new")
    assert list(table.routes.losing("old")) == []
    assert table.addrs() == {0: "10.0.0.7:10911"}


def test_goodbye_of_an_unknown_broker_changes_nothing(table: Table) -> None:
    table.register(registration())
    assert table.unregister(slave(1)) is None
    assert table.addrs() == {0: "10.0.0.7:10911"}


def test_a_topic_stays_while_another_broker_serves_it(table: Table) -> None:
    table.register(registration())
    table.register(registration(broker_name="b-b", broker_addr="10.0.0.8:10911"))
    removal = table.unregister(registration())
    assert removal is not None
    assert removal.topics_removed == 0
    route = table.routes.route("T1")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == ["b-b"]
    assert [data.broker_name for data in route.broker_datas] == ["b-b"]


def test_the_topics_stay_while_a_slave_lives(table: Table) -> None:
    table.register(registration())
    table.register(slave(1))
    removal = table.unregister(registration())
    assert removal is not None
    assert removal.change is not None
    assert (removal.change.min_broker_id, removal.change.offline_broker_addr) == (1, "10.0.0.7:10911")
    assert removal.change.notified_addrs == ("10.0.1.1:10911",)
    assert table.addrs() == {1: "10.0.1.1:10911"}
    assert table.perm() == Perm.READ_WRITE


@pytest.mark.parametrize(
    ("support", "shown"),
    [
        (False, {1: "10.0.1.1:10911", 2: "10.0.1.2:10911"}),
        (True, {0: "10.0.1.1:10911", 2: "10.0.1.2:10911"}),
    ],
)
def test_without_its_master_a_group_is_read_only_and_may_show_a_slave_as_master(
    support: bool, shown: dict[int, str]
) -> None:
    table = Table(support_acting_master=support)
    table.register(registration(acting_master=True))
    table.register(slave(1, acting_master=True))
    table.register(slave(2, acting_master=True))
    assert table.perm() == Perm.READ_WRITE
    table.unregister(registration())
    assert table.perm() == Perm.READ
    assert table.addrs() == shown
    assert table.routes.member_group("b-a") == {1: "10.0.1.1:10911", 2: "10.0.1.2:10911"}


def test_the_topic_by_which_brokers_find_their_group_never_shows_an_acting_master() -> None:
    table = Table(support_acting_master=True)
    topic = "rmq_sys_SYNC_BROKER_MEMBER_b-a"
    table.register(slave(1, acting_master=True, topics=TWO | {topic: T1["T1"]}))
    assert table.addrs("T1") == {0: "10.0.1.1:10911"}
    assert table.addrs(topic) == {1: "10.0.1.1:10911"}


def test_the_returning_master_is_writable_again(table: Table) -> None:
    table.register(registration(acting_master=True))
    table.register(slave(1, acting_master=True))
    table.unregister(registration(acting_master=True))
    table.register(registration(acting_master=True))
    assert table.perm() == Perm.READ_WRITE


# --- answers and changes by admins ------------------------------------------------------------------------------


def test_version_query_tells_a_change_and_the_stored_version(table: Table) -> None:
    table.register(registration())
    assert table.routes.query_data_version("c1", "10.0.0.7:10911", version(), 0) == (False, version())
    assert table.routes.query_data_version("c1", "10.0.0.7:10911", version(2), 0) == (True, version())
    assert table.routes.query_data_version("c1", "10.0.0.9:1", version(), 0) == (True, None)


def test_write_permission_is_taken_until_the_version_changes(table: Table) -> None:
    table.register(registration())
    assert at_once(table.routes.setting_writable("b-a", False)) == 2
    assert table.perm() == Perm.READ
    table.register(registration())
    assert table.perm() == Perm.READ
    table.register(registration(data_version=version(2)))
    assert table.perm() == Perm.READ_WRITE


def test_write_permission_is_given_to_every_topic(table: Table) -> None:
    table.register(registration(topics={"T1": TopicQueues(1, 1, 0), "T2": TopicQueues(1, 1, Perm.READ)}))
    assert at_once(table.routes.setting_writable("b-a", True)) == 2
    assert [table.perm(topic) for topic in ("T1", "T2")] == [Perm.READ_WRITE, Perm.READ_WRITE]
    assert at_once(table.routes.setting_writable("unknown", True)) == 0


def test_a_topic_is_deleted_everywhere_or_in_one_cluster(table: Table) -> None:
    table.register(registration())
    table.register(registration(cluster="c2", broker_name="b-b", broker_addr="10.0.0.8:10911"))
    assert at_once(table.routes.deleting_topic("T1", "c1")) == 1
    table.routes.check()
    assert at_once(table.routes.listing(cluster="c1")) == ["T2"]
    assert at_once(table.routes.listing(cluster="c2")) == ["T1", "T2"]
    assert at_once(table.routes.deleting_topic("T2")) == 2
    assert at_once(table.routes.deleting_topic("T2")) == 0
    assert at_once(table.routes.deleting_topic("T1", "unknown")) == 0
    table.routes.check()
    assert at_once(table.routes.listing()) == ["T1"]


def test_a_topic_is_registered_only_on_brokers_that_are_known(table: Table) -> None:
    table.register(registration())
    assert table.routes.register_topic("N", {"b-a": T1["T1"]})
    assert not table.routes.register_topic("M", {"b-a": T1["T1"], "b-x": T1["T1"]})
    assert not table.routes.register_topic("M", {})
    table.routes.check()
    assert at_once(table.routes.listing()) == ["N", "T1", "T2"]


def test_lists_by_flag(table: Table) -> None:
    flags = {"none": 0, "unit": 1, "sub": 2, "both": 3}
    table.register(registration(topics={name: TopicQueues(1, 1, 6, flag) for name, flag in flags.items()}))
    assert at_once(table.routes.listing(unit=True)) == ["both", "unit"]
    assert at_once(table.routes.listing(unit_subscription=True)) == ["both", "sub"]
    assert at_once(table.routes.listing(unit=False, unit_subscription=True)) == ["sub"]


def test_system_topics_are_the_names_of_clusters_and_brokers(table: Table) -> None:
    assert table.routes.system_topics() == ([], None)
    table.register(registration())
    table.register(registration(cluster="c2", broker_name="b-b", broker_addr="10.0.0.8:10911"))
    assert table.routes.system_topics() == (["c1", "b-a", "c2", "b-b"], "10.0.0.7:10911")


def test_filter_servers_of_old_brokers_are_passed_on(table: Table) -> None:
    table.register(registration(filter_servers=("10.0.0.7:30000",)))
    route = table.routes.route("T1")
    assert route is not None
    assert route.filter_server_table == {"10.0.0.7:10911": ["10.0.0.7:30000"]}


def test_an_unknown_topic_has_no_route(table: Table) -> None:
    assert table.routes.route("T1") is None
    assert table.routes.member_group("b-a") == {}


# --- any sequence -----------------------------------------------------------------------------------------------

NAMES = st.sampled_from(["b-a", "b-b"])
ADDRS = st.sampled_from([f"10.0.0.{n}:10911" for n in range(4)])
CLUSTERS = st.sampled_from(["c1", "c2"])
CONNECTIONS = st.sampled_from(["one", "two", "three"])
QUEUES = st.builds(TopicQueues, st.just(1), st.just(1), st.sampled_from([2, 4, 6]))
REGISTRATIONS = st.builds(
    registration,
    cluster=CLUSTERS,
    broker_name=NAMES,
    broker_id=st.integers(0, 2),
    broker_addr=ADDRS,
    data_version=st.builds(version, st.integers(0, 2), st.integers(0, 2)),
    topics=st.dictionaries(st.sampled_from(["T1", "T2", "T3"]), QUEUES),
    acting_master=st.sampled_from([None, False, True]),
    timeout_ms=st.integers(1, 5),
)
STEPS = st.one_of(
    st.tuples(st.just("register"), REGISTRATIONS, CONNECTIONS),
    st.tuples(st.just("unregister"), CLUSTERS, ADDRS),
    st.tuples(st.just("losing"), CONNECTIONS),
    st.tuples(st.just("expire")),
    st.tuples(st.just("deleting_topic"), st.sampled_from(["T1", "T2"]), st.sampled_from([None, "c1"])),
    st.tuples(st.just("setting_writable"), NAMES, st.booleans()),
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=30), st.booleans(), st.booleans())
def test_no_sequence_breaks_an_invariant(steps: list[Any], support: bool, drop: bool) -> None:
    limits = RouteLimits(topics_max=2, brokers_max=3)
    table = Table(limits=limits, support_acting_master=support, drop_unlisted_topics=drop)
    for now_ms, (name, *arguments) in enumerate(steps):
        before = table.picture()
        try:
            if name == "register":
                new, connection = arguments
                table.routes.register(new, now_ms=now_ms, connection=connection)
            elif name == "expire":
                list(table.routes.expiring(now_ms))
            elif name == "losing":
                list(table.routes.losing(*arguments))
            elif name in ("setting_writable", "deleting_topic"):
                at_once(getattr(table.routes, name)(*arguments))
            else:
                getattr(table.routes, name)(*arguments)
        except RequestError:
            assert table.picture() == before
        table.routes.check()
        counts = table.routes.statistics()
        assert counts.topics <= limits.topics_max
        assert counts.brokers <= limits.brokers_max


INTERLEAVED = st.lists(
    st.one_of(STEPS, st.tuples(st.just("go on"), st.integers(0, 3), st.integers(1, 6))), max_size=40
)


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every topic is a step, every change is large, and nothing is tidied up at once."""
    monkeypatch.setattr(route_table, "STEP_TOPICS", 1)
    monkeypatch.setattr(route_table, "IN_PLACE_MAX", 0)
    monkeypatch.setattr(route_table, "TIDY_AT_ONCE", 0)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(INTERLEAVED, st.booleans())
def test_no_interleaving_breaks_an_invariant(small_steps: None, steps: list[Any], drop: bool) -> None:
    """Large changes and tidying go on step by step between all others, and some are given up."""
    limits = RouteLimits(topics_max=2, brokers_max=3)
    routes = RouteTable(limits=limits, drop_unlisted_topics=drop)
    under_way: list[Any] = []
    for now_ms, (name, *arguments) in enumerate(steps):
        with suppress(RequestError):
            if name == "register":
                new, connection = arguments
                under_way.append(routes.registering(new, now_ms=now_ms, connection=connection))
            elif name == "go on":
                which, count = arguments
                work = under_way[which] if which < len(under_way) else routes.tidying()
                for _ in islice(work, count):
                    routes.check()
                if which == 3 and under_way:
                    under_way.pop(0).close()  # its connection is lost
            elif name == "expire":
                list(routes.expiring(now_ms))
            elif name == "losing":
                list(routes.losing(*arguments))
            elif name in ("setting_writable", "deleting_topic"):
                under_way.append(getattr(routes, name)(*arguments))
            else:
                getattr(routes, name)(*arguments)
        routes.check()
        assert routes.statistics().topics <= limits.topics_max
        assert routes.statistics().brokers <= limits.brokers_max
    for work in under_way:
        with suppress(RequestError):
            at_once(work)
    at_once(routes.tidying())
    routes.check()
    assert not routes.left
    assert not routes.coming


def test_a_registration_is_seen_whole_or_not_at_all(table: Table, small_steps: None) -> None:
    table.register(registration(topics=many_topics(20)))
    other = many_topics(10, "other") | {f"topic-{n}": TopicQueues(4, 4, Perm.READ) for n in range(20)}
    before, seen = repr(table.picture()[:3]), set()
    steps = table.routes.registering(
        registration(data_version=version(2), topics=other), now_ms=0, connection="10.0.0.7:10911"
    )
    for _ in steps:
        table.routes.check()
        seen.add(repr(table.picture()[:3]))
    table.routes.check()
    assert seen == {before}
    assert len(at_once(table.routes.listing())) == 30
    assert {table.perm(f"topic-{n}") for n in range(20)} == {Perm.READ}


def test_a_registration_that_is_given_up_leaves_nothing(table: Table, small_steps: None) -> None:
    """Its connection was lost in the middle."""
    steps = table.routes.registering(registration(topics=many_topics(20)), now_ms=0, connection="lost")
    for _ in islice(steps, 30):
        table.routes.check()
    steps.close()
    at_once(table.routes.tidying())
    table.routes.check()
    assert table.routes.statistics() == RouteStatistics(clusters=0, broker_names=0, brokers=0, topics=0)


def test_what_is_lost_while_a_registration_is_made_ready_is_looked_at_again(
    table: Table, small_steps: None
) -> None:
    """Only a change of the topics was to come; then the old connection ended, and with it all that was known."""
    table.register(registration(topics=many_topics(20)), connection="old")
    new = registration(data_version=version(2), topics=many_topics(20) | {"one-more": TopicQueues(1, 1, 6)})
    steps = table.routes.registering(new, now_ms=0, connection="new")
    next(steps)
    (removal,) = list(table.routes.losing("old"))
    counted = [removal.topics_removed]
    assert at_once(steps).first
    at_once(table.routes.tidying())
    table.routes.check()
    assert [*counted, removal.topics_removed] == [None, 0]
    assert len(at_once(table.routes.listing())) == 21


def test_topics_of_a_broker_that_has_just_left_do_not_count_against_the_limit(small_steps: None) -> None:
    table = Table(limits=RouteLimits(topics_max=30))
    table.register(registration(topics=many_topics(20)))
    list(table.routes.losing("10.0.0.7:10911"))
    table.register(registration(broker_name="b-b", broker_addr="10.0.0.8:1", topics=many_topics(20, "other")))
    assert len(at_once(table.routes.listing())) == 20


def test_a_broker_that_leaves_meanwhile_has_no_permission_taken(table: Table, small_steps: None) -> None:
    table.register(registration(topics=many_topics(20)))
    steps = table.routes.setting_writable("b-a", False)
    next(steps)
    list(table.routes.losing("10.0.0.7:10911"))
    next(table.routes.tidying())  # its topics are taken out of the index
    assert at_once(steps) == 0
    at_once(table.routes.tidying())
    table.routes.check()


def test_a_topic_is_deleted_on_the_brokers_that_are_still_there(table: Table, small_steps: None) -> None:
    addrs = {f"b-{number}": f"10.0.0.{number}:1" for number in range(4)}
    for name, addr in addrs.items():
        table.register(registration(broker_name=name, broker_addr=addr))
    steps = table.routes.deleting_topic("T1")
    next(steps)
    served = [name for name, group in table.routes.groups.items() if "T1" in group.topics]
    list(table.routes.losing(addrs[served[0]]))
    assert at_once(steps) == 3
    assert table.routes.route("T1") is None
    table.routes.check()


def test_changes_that_never_end_are_refused(table: Table, small_steps: None) -> None:
    table.register(registration(topics=many_topics(20)))
    steps = table.routes.setting_writable("b-a", False)

    def disturbed() -> int:
        for number, _ in enumerate(steps):
            table.routes.register_topic("topic-1", {"b-a": TopicQueues(number, 1, 6)})
        return number

    with pytest.raises(RequestError) as caught:
        disturbed()
    assert caught.value.code == ResponseCode.SYSTEM_BUSY


def test_many_brokers_of_a_topic_come_and_go(table: Table) -> None:
    names = [f"b-{number}" for number in range(route_table.FEW_NAMES * 3)]
    for number, name in enumerate(names):
        table.register(registration(broker_name=name, broker_addr=f"10.0.0.{number}:1"))
    route = table.routes.route("T1")
    assert route is not None
    assert [data.broker_name for data in route.queue_datas] == sorted(names)
    for number in range(len(names)):
        list(table.routes.losing(f"10.0.0.{number}:1"))
        table.routes.check()
    assert at_once(table.routes.listing()) == []


def many_topics(count: int, prefix: str = "topic") -> dict[str, TopicQueues]:
    return {f"{prefix}-{number}": TopicQueues(4, 4, Perm.READ_WRITE) for number in range(count)}


def test_what_a_connection_registers_is_bounded_refused_as_a_whole_and_given_back() -> None:
    """Topics were counted by name alone: each of ten thousand broker names could have all of them."""
    memory = PeerMemory(peer_max=100_000)
    table = Table(memory=memory)
    for number in range(3):
        table.register(
            registration(broker_name=f"b-{number}", broker_addr=f"10.0.0.{number}:1", topics=many_topics(50)),
            connection="greedy",
        )
    with pytest.raises(LimitReached) as refused:
        table.routes.register(
            registration(broker_name="b-9", broker_addr="10.0.0.9:1", topics=many_topics(50)),
            now_ms=0,
            connection="greedy",
        )
    assert refused.value.limit == PEER_LIMIT
    table.routes.check()
    assert memory.of("greedy") <= 100_000
    table.register(registration(broker_name="b-9", broker_addr="10.0.0.9:1", topics=many_topics(50)))
    assert len(list(table.routes.losing("greedy"))) == 3
    table.routes.check()
    assert (memory.of("greedy"), memory.peer_count) == (0, 1)
    table.unregister(registration(broker_name="b-9", broker_addr="10.0.0.9:1"))
    assert memory.total == 0


def test_the_sum_of_all_registrations_is_bounded() -> None:
    memory = PeerMemory(total_max=100_000)
    table = Table(memory=memory)
    table.register(registration(topics=many_topics(150)))
    other = registration(broker_name="b-b", broker_addr="10.0.0.8:1", topics=many_topics(150, "other"))
    assert TOTAL_LIMIT in table.refused(other).remark
    longer = registration(filter_servers=("x" * 20_000,), topics=many_topics(150))
    assert TOTAL_LIMIT in table.refused(longer).remark
    shares = {"b-a": TopicQueues(1, 1, Perm.READ)}
    number = 0
    while memory.total + share_size(f"more-{number}") <= memory.total_max:
        assert table.routes.register_topic(f"more-{number}", shares)
        number += 1
    with pytest.raises(LimitReached):
        table.routes.register_topic(f"more-{number}", shares)
    table.routes.check()
    assert memory.total <= 100_000


@pytest.mark.parametrize("bound", ["total_max", "peer_max"])
def test_who_is_registered_may_come_again_however_full_the_account_is(bound: str) -> None:
    """Each renewal asked for room for a second member: in a full account brokers were refused until they expired."""
    memory = PeerMemory()
    table = Table(memory=memory)
    table.register(registration(), connection="first")
    setattr(memory, bound, memory.total)
    again = registration(data_version=version(counter=2))
    assert not table.register(again, now_ms=1, connection="first").first
    more = registration(data_version=version(counter=3), topics=TWO | many_topics(1))
    with pytest.raises(LimitReached):
        table.register(more, now_ms=2, connection="first")
    assert memory.total <= getattr(memory, bound)


def test_topics_of_a_group_are_counted_for_a_member_that_is_there() -> None:
    memory = PeerMemory()
    table = Table(memory=memory)
    table.register(registration(topics=many_topics(100)), connection="master")
    table.register(slave(topics=many_topics(2)), connection="slave")
    list(table.routes.losing("slave"))
    table.routes.check()
    table.register(slave(topics=many_topics(2)), connection="slave")
    list(table.routes.losing("master"))
    table.routes.check()
    assert memory.of("master") == 0
    assert memory.of("slave") > 100 * 512
    list(table.routes.losing("slave"))
    assert memory.total == 0
