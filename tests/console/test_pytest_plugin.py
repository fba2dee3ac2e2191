"""The pytest plug-in, used as its users do: by test files of their own, run by pytest in a process of its own."""

import importlib.metadata
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import aerobee
import aerobee.errors
from aerobee_pytest import Server

pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parent.parent.parent

USES_THE_SERVER = """
import threading
import pytest

def test_sync(aerobee_sync_client, aerobee_topic):
    with aerobee_sync_client.producer() as producer:
        producer.send(aerobee_topic, b"hello")
    assert [m.body for m in aerobee_sync_client.reader(aerobee_topic, end="now")] == [b"hello"]

{mark}
async def test_async(aerobee_client, aerobee_topic_factory):
    first, second = aerobee_topic_factory(), aerobee_topic_factory("orders", queues=1)
    assert first != second
    assert second.startswith("orders-")
    async with aerobee_client.producer() as producer:
        await producer.send(second, b"17")
    assert [m.body async for m in aerobee_client.reader(second, end="now")] == [b"17"]
    assert len(await aerobee_client.queues(second)) == 1

def test_topics_are_empty(aerobee_sync_client, aerobee_topic):
    assert list(aerobee_sync_client.reader(aerobee_topic, end="now")) == []
"""


@pytest.fixture(autouse=True)
def asyncio_settings(pytester: pytest.Pytester) -> None:
    """What pytest-asyncio asks to be said, and our own rule: a warning is an error."""
    pytester.makeini(
        "[pytest]\nasyncio_default_fixture_loop_scope = function\nfilterwarnings = error\ntimeout = 60\n"
    )


def test_the_plugin_is_registered() -> None:
    names = {entry.value for entry in importlib.metadata.entry_points(group="pytest11")}
    assert "aerobee_pytest.plugin" in names


@pytest.mark.parametrize("mode", ["auto", "strict"])
def test_sync_and_async_tests_share_one_server(pytester: pytest.Pytester, mode: str) -> None:
    pytester.makepyfile(USES_THE_SERVER.replace("{mark}", "@pytest.mark.asyncio" if mode == "strict" else ""))
    result = pytester.runpytest_subprocess(f"--asyncio-mode={mode}", "-s")
    result.assert_outcomes(passed=3)
    assert "broker." not in result.stdout.str() + result.stderr.str()  # not even with -s


def test_without_pytest_asyncio_the_other_fixtures_work(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_sync(aerobee_sync_client, aerobee_topic):
            assert len(aerobee_sync_client.queues(aerobee_topic)) == 4
        """
    )
    pytester.makeini("[pytest]\nfilterwarnings = error\n")
    pytester.runpytest_subprocess("-p", "no:asyncio").assert_outcomes(passed=1)


def test_a_run_that_does_not_use_it_loads_nothing_of_ours(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys, threading

        def test_nothing_is_there():
            rooms = ("aerobee", "aerobee_broker", "aerobee_console", "aerobee_remoting", "aerobee_proto")
            assert {*rooms, "numpy", "pydantic", "structlog", "uvloop"} & set(sys.modules) == set()
            assert threading.active_count() == 1
        """
    )
    pytester.makeini("[pytest]\n")  # a time-out would start a thread, and so does this plug-in:
    pytester.runpytest_subprocess("-p", "no:rerunfailures").assert_outcomes(passed=1)


def test_settings_are_overridden_in_a_conftest(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def aerobee_broker_config():
            return {"maxMessageSize": 1000, "autoCreateTopicEnable": False}
        """
    )
    pytester.makepyfile(
        """
        import pytest
        import aerobee

        def test_the_broker_has_them(aerobee_sync_client, aerobee_server, aerobee_topic):
            node = aerobee_sync_client.admin.brokers()[0]
            settings = aerobee_sync_client.admin.broker_config(node.addr)
            assert (settings["maxMessageSize"], settings["autoCreateTopicEnable"]) == ("1000", "false")
            with aerobee_sync_client.producer() as producer, pytest.raises(aerobee.ClientError):
                producer.send(aerobee_topic, b"x" * 1001)
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_a_wrong_setting_is_told_at_the_first_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.fixture(scope="session")
        def aerobee_broker_config():
            return {"maxMesageSize": 1000}

        def test_never_runs(aerobee_server):
            raise AssertionError
        """
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*maxMesageSize*maxMessageSize*"])


def test_a_server_of_ones_own_is_another_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        def test_two(aerobee_server, aerobee_own_server):
            assert aerobee_server.nameserver != aerobee_own_server.nameserver
            topic = aerobee_own_server.new_topic("mine")
            with aerobee_own_server.sync_client() as own, aerobee_server.sync_client() as shared:
                assert topic in own.admin.topics()
                assert topic not in shared.admin.topics()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_nothing_is_left_when_a_server_stops(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, threading
        from pathlib import Path
        from aerobee_pytest import Server

        def state():
            return {t.name for t in threading.enumerate()}, len(os.listdir("/proc/self/fd"))

        def used():
            with Server() as server:
                topic = server.new_topic()
                with server.sync_client() as mq, mq.producer() as producer:
                    producer.send(topic, b"hello")
                assert sum(f.stat().st_blocks * 512 for f in server.store.rglob("*") if f.is_file()) < 64 << 20
            return server.store

        def test_stop():
            used()  # what is loaded at the first use stays open
            before = state()
            folder = used()
            assert state() == before
            assert not folder.exists()
        """
    )
    pytester.runpytest_subprocess().assert_outcomes(passed=1)


def test_events_of_the_server_are_shown_with_a_test_that_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import structlog

        def test_fails(aerobee_own_server, caplog):
            structlog.configure(processors=[structlog.processors.KeyValueRenderer()])
            aerobee_own_server.new_topic("shown")
            raise AssertionError
        """
    )
    result = pytester.runpytest_subprocess("--log-level=INFO")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["*Captured log call*", "*aerobee.server*broker.topic_created*topic='shown-1'*"]
    )


def test_workers_of_xdist_have_servers_of_their_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import os, pathlib, pytest

        @pytest.mark.parametrize("number", range(4))
        def test_each(aerobee_sync_client, aerobee_server, aerobee_topic, number):
            with aerobee_sync_client.producer() as producer:
                producer.send(aerobee_topic, b"hello")
            worker = os.environ["PYTEST_XDIST_WORKER"]
            pathlib.Path(f"{worker}-{aerobee_server.nameserver.rpartition(':')[2]}.txt").touch()
        """
    )
    pytester.runpytest_subprocess("-n", "2", "--dist", "each").assert_outcomes(passed=8)
    assert len({path.name for path in pytester.path.glob("gw*-*.txt")}) == 2


@pytest.mark.alone
def test_a_start_takes_a_fraction_of_starting_the_program() -> None:
    """Under 200 ms is the promise. Machines that test are busy, so the bound is ten times what it takes, and the
    best of several starts counts."""
    took_ms = []
    for _ in range(5):
        with Server() as server:
            took_ms.append(server.start_took_ms)
    assert min(took_ms) < 400, took_ms


def test_the_examples_of_the_page_run(pytester: pytest.Pytester) -> None:
    """The first one failed with pytest's defaults: the page did not name pytest-asyncio and its mode."""
    text = (ROOT / "docs" / "testing.md").read_text(encoding="utf-8")
    examples = re.findall(r"```(?:python|ini)\n# (\w+\.\w+)\n(.*?)```", text, re.DOTALL)
    assert {name for name, _ in examples} >= {"pytest.ini", "conftest.py", "test_orders.py"}
    for name, code in examples:
        (pytester.path / name).write_text(code, encoding="utf-8")
    result = pytester.runpytest_subprocess()  # as a user does: what it needs is on the page
    outcomes = result.parseoutcomes()
    assert set(outcomes) == {"passed"}, outcomes
    assert outcomes["passed"] == sum(code.count("def test_") for _, code in examples)


# --- looking into the broker --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server() as server:
        yield server


def test_what_is_put_there_is_what_a_program_finds(server: Server) -> None:
    topic = server.new_topic()
    put = server.put(topic, b"17", "18", tags="paid", keys=["a", "b"], properties={"colour": "red"}, queue=2)
    assert [(one.queue.queue_id, one.queue_offset) for one in put] == [(2, 0), (2, 1)]
    with server.sync_client() as mq:
        read = list(mq.reader(topic, end="now"))
        found = mq.query_by_id(put[1].message_id, topic)
    assert [one.body for one in read] == [b"17", b"18"]
    assert {(one.tags, one.keys, one.properties["colour"]) for one in read} == {("paid", ("a", "b"), "red")}
    assert [one.message_id for one in read] == [one.message_id for one in put]
    assert [one.offset_message_id for one in read] == [one.offset_message_id for one in put]
    assert [one.queue for one in read] == [one.queue for one in put]
    assert found is not None
    assert found.body == b"18"


def test_what_a_program_sent_is_seen_in_its_order_and_leaves_no_trace(server: Server) -> None:
    topic = server.new_topic()
    large = b"large and easily compressed " * 1000
    with server.sync_client() as mq:
        groups = [group.group_name for group in mq.admin.groups()]
        with mq.producer() as producer:
            for number in range(600):
                producer.send_nowait(topic, b"%d" % number, queue=number % 3)
            producer.flush()
            producer.send(topic, large, tags="last")
        sent = server.messages(topic)
        assert [group.group_name for group in mq.admin.groups()] == groups
    for queue in range(3):
        in_queue = [one.body for one in sent if one.queue_id == queue and one.body != large]
        assert in_queue == [b"%d" % number for number in range(queue, 600, 3)]
    assert (len(sent), sent[-1].body, sent[-1].tags) == (601, large, "last")
    places = [one.record.physical_offset for one in sent]
    assert places == sorted(places)


def test_messages_are_waited_for(server: Server) -> None:
    topic = server.new_topic()
    server.put(topic, b"0")
    timer = threading.Timer(0.2, lambda: server.put(topic, b"1", b"2", queue=3))
    timer.start()
    assert len(server.messages(topic, at_least=3, timeout_s=30)) == 3
    timer.join()
    began = time.monotonic()
    assert len(server.messages(topic, at_least=4, timeout_s=0.3)) == 3  # what there is
    # The event loop's clock counts whole milliseconds, and stands still during a turn: 0.3 s may be less.
    assert time.monotonic() - began >= 0.2


def test_how_far_a_group_has_come(server: Server) -> None:
    topic = server.new_topic(queues=2)
    server.put(topic, b"0", b"1", b"2", queue=1)
    assert server.committed("readers", topic) == {0: 0, 1: 0}
    with server.sync_client() as mq, mq.pull_consumer("readers", topic, start="earliest") as consumer:
        batch = consumer.next_batch()
        assert batch is not None
        consumer.commit(batch)
    assert server.committed("readers", topic) == {0: 0, 1: len(batch)}
    assert len(batch) == 3  # they are one answer


def test_refusals_are_those_of_the_client(server: Server) -> None:
    topic = server.new_topic()
    with pytest.raises(aerobee.errors.BrokerRefused, match="has the queues 0 to 3"):
        server.put(topic, b"0", queue=4)
    with pytest.raises(aerobee.errors.BrokerRefused, match="TOPIC_NOT_EXIST"):
        server.messages("no-such-topic")
    with pytest.raises(aerobee.errors.BrokerRefused, match="TOPIC_NOT_EXIST"):
        server.committed("readers", "no-such-topic")
    with pytest.raises(aerobee.InvalidMessage, match="belongs to the protocol"):
        server.put(topic, b"0", properties={"UNIQ_KEY": "mine"})
    assert server.messages(topic) == []


def test_a_server_that_has_stopped_says_so() -> None:
    with Server() as server:
        topic = server.new_topic()
        server.put(topic, b"0")
    with pytest.raises(RuntimeError, match="does not run"):
        server.messages(topic)
