"""Metrics by RocketMQ's names, and health with reasons, over HTTP from a real store."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from aerobee_access.refusals import REASONS, AccessFigures
from aerobee_broker.assembly import Parts
from aerobee_broker.cluster.registration import NameserverState
from aerobee_broker.members.clients import Member
from aerobee_broker.metrics.disk_figures import DiskFigures, Figures
from aerobee_broker.metrics.health import health_of
from aerobee_broker.metrics.metric_families import families, take_snapshot
from aerobee_broker.metrics.metrics import MetricsServer
from aerobee_broker.metrics.observed import Observed
from aerobee_broker.remoting_api.broker_handlers import BrokerHandlers
from aerobee_proto.bodies import ConsumerData, SubscriptionData
from aerobee_proto.codes import RequestCode
from aerobee_remoting.ends.server import BROKEN_OFF
from aerobee_remoting.exchange.connection import Connection
from aerobee_remoting.exchange.handlers import HandlerTable
from aerobee_service.program.start_failures import CannotListen, explain
from broker.support import START_MS, Clock, Peer, put

NODE = {"cluster": "GoldenCluster", "node_type": "broker", "node_id": "golden-a"}
DISK = Figures(100 << 30, 60 << 30)


async def get(port: int, path: str) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


@asynccontextmanager
async def serving(parts: Parts, observed: Observed) -> AsyncIterator[MetricsServer]:
    parts.live.value = parts.config.model_copy(
        update={"metrics_prom_exporter_port": 0, "metrics_prom_exporter_host": "127.0.0.1"}
    )
    server = MetricsServer(observed)
    await server.start()
    yield server
    await server.close()


@pytest.fixture
async def server(parts: Parts) -> AsyncIterator[MetricsServer]:
    observed = replace(parts.observed, facts=lambda: {"connections": 3, "note": "not a number"})
    async with serving(parts, observed) as server:
        yield server


@pytest.fixture
def traffic(parts: Parts, clock: Clock) -> None:
    """Five messages in T, of which g has committed two and pulled three."""
    parts.topics.restore({"T": 1})
    for _ in range(5):
        put(parts, "T")
        clock.now_ms += 1_000
    parts.stats.put("T", 5, 500)
    parts.stats.got(("g", "T"), 3, 300)
    parts.groups.find("g")
    parts.offsets.commit("g", "T", 0, 2)
    parts.offsets.note_pull("g", "T", 0, 3)


def samples(body: bytes) -> dict[str, dict[frozenset[tuple[str, str]], float]]:
    found: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if name not in NODE)
            found.setdefault(sample.name, {})[labels] = sample.value
    return found


def labels(**fields: str) -> frozenset[tuple[str, str]]:
    return frozenset(fields.items())


@pytest.mark.usefixtures("traffic")
async def test_a_scrape_shows_the_traffic(parts: Parts, server: MetricsServer) -> None:
    connection = Connection()
    consumer = ConsumerData(group_name="g", subscription_data_set=[SubscriptionData(topic="T")])
    parts.consumers.register(Member("c", connection, "GO", 317, 0), consumer, notify=False)
    parts.producers.register("p", Member("c", connection, "JAVA", 479, 0))
    status, body = await get(server.port, "/metrics")
    assert status == 200
    found = samples(body)
    topic = labels(topic="T", is_retry="false", is_system="false")
    group = topic | labels(consumer_group="g")
    assert found["rocketmq_messages_in_total"] == {topic: 5.0}
    assert found["rocketmq_throughput_in_total"] == {topic: 500.0}
    assert found["rocketmq_messages_out_total"] == {group: 3.0}
    assert found["rocketmq_consumer_lag_messages"] == {group: 3.0}
    assert found["rocketmq_consumer_inflight_messages"] == {group: 1.0}
    assert found["rocketmq_consumer_lag_latency"] == {group: 3_000.0}
    assert found["rocketmq_producer_connections"] == {labels(language="JAVA", version="479"): 1.0}
    assert sum(found["rocketmq_consumer_connections"].values()) == 1.0
    assert found["rocketmq_broker_permission"] == {frozenset(): 6.0}
    assert found["rocketmq_storage_size"][frozenset()] == parts.store.end_offset
    assert found["rocketmq_storage_message_reserve_time"] == {frozenset(): parts.clock() - START_MS}
    assert found["aerobee_broker_connections"] == {frozenset(): 3.0}
    assert "aerobee_broker_note" not in found
    assert found["process_resident_memory_bytes"]
    assert found["aerobee_build_info"] == {labels(version=version("aerobee"), protocol_version="V5_3_3"): 1.0}


async def test_requests_are_told_by_what_served_them(parts: Parts, server: MetricsServer) -> None:
    """Whether the native engine takes what it is there for could not be seen."""
    found = samples((await get(server.port, "/metrics"))[1])
    assert "aerobee_requests_total" not in found
    entry = parts.server.handlers.by_code[RequestCode.SEND_MESSAGE_V2]
    entry.requests, entry.by_front = 10, 7
    entry = parts.server.handlers.by_code[RequestCode.HEART_BEAT]
    entry.requests = 2
    found = samples((await get(server.port, "/metrics"))[1])
    sends, beats = (
        {"code": "310", "handler": "SendProcessor.on_sends"},
        {"code": "34", "handler": "ClientHandlers.heartbeat"},
    )
    assert found["aerobee_requests_total"] == {
        labels(**sends, engine="native"): 7.0,
        labels(**sends, engine="python"): 3.0,
        labels(**beats, engine="python"): 2.0,
    }


async def test_histograms_of_sends_and_syncs(parts: Parts, server: MetricsServer) -> None:
    """No histogram told how long sends and syncs take."""
    parts.stats.put("T", 10, 1_000)
    parts.stats.put_took(30.0, 4)  # the other six waited for nothing
    parts.stats.put_took(99_000.0, 1)
    for took_ms in (0.1, 0.2, 700.0):
        parts.stats.flushed(took_ms)
    found = samples((await get(server.port, "/metrics"))[1])
    puts = found["aerobee_put_seconds_bucket"]
    assert (puts[labels(le="0.01")], puts[labels(le="0.05")]) == (5.0, 9.0)
    assert (puts[labels(le="10.0")], puts[labels(le="+Inf")]) == (9.0, 10.0)
    assert found["aerobee_put_seconds_count"] == {frozenset(): 10.0}
    assert found["aerobee_put_seconds_sum"] == {frozenset(): pytest.approx(99.12)}
    flushes = found["aerobee_flush_seconds_bucket"]
    assert [flushes[labels(le=bound)] for bound in ("0.0001", "0.00025", "0.5", "1.0", "+Inf")] == [
        1,
        2,
        2,
        3,
        3,
    ]
    assert found["aerobee_flush_seconds_count"] == {frozenset(): 3.0}


async def test_dead_letters_and_waiting_timer_messages(parts: Parts, server: MetricsServer) -> None:
    parts.topics.restore({"%DLQ%g": 1, "T": 1})
    put(parts, "%DLQ%g")
    put(parts, "%DLQ%g")
    parts.timer_counts.add("T", 3, 0)
    found = samples((await get(server.port, "/metrics"))[1])
    key = labels(consumer_group="g", topic="%DLQ%g", is_system="false")
    assert found["rocketmq_send_to_dlq_messages_total"] == {key: 2.0}
    assert found["rocketmq_timing_messages"] == {labels(topic="T"): 3.0}


async def test_metrics_are_for_this_machine_alone_unless_told(parts: Parts) -> None:
    """/metrics and /health were on every address of the machine."""
    assert type(parts.config).model_fields["metrics_prom_exporter_host"].default == "127.0.0.1"
    parts.live.value = parts.config.model_copy(
        update={
            "metrics_prom_exporter_port": 0,
            "metrics_prom_exporter_host": "127.0.0.1",
            "bind_address": "0.0.0.0",
        }
    )
    server = MetricsServer(parts.observed)
    with capture_logs() as logs:
        await server.start()
    await server.close()
    assert [line["host"] for line in logs] == ["127.0.0.1"]


@pytest.mark.usefixtures("traffic")
async def test_deleted_topics_and_groups_have_no_series(parts: Parts, server: MetricsServer) -> None:
    parts.topics.delete("T")
    parts.stats.topic_deleted("T")
    parts.offsets.remove_topic("T")
    found = samples((await get(server.port, "/metrics"))[1])
    assert "rocketmq_messages_in_total" not in found
    assert "rocketmq_consumer_lag_messages" not in found


async def test_names_that_need_escaping_survive(parts: Parts, server: MetricsServer) -> None:
    parts.stats.put('odd"\\\n', 1, 1)
    found = samples((await get(server.port, "/metrics"))[1])
    assert (
        labels(topic='odd"\\\n', is_retry="false", is_system="false") in found["rocketmq_messages_in_total"]
    )


async def test_refusals_are_counted_by_reason(parts: Parts) -> None:
    observed = replace(
        parts.observed,
        access=lambda: AccessFigures({"unsigned": 3, "rights": 4}, 2, 1),
        turned_away=lambda: {"limit": 5, "proxy_header": 6},
    )
    async with serving(parts, observed) as server:
        found = samples((await get(server.port, "/metrics"))[1])
    assert found["aerobee_access_refused_total"] == {
        labels(reason="unsigned"): 3.0,
        labels(reason="rights"): 4.0,
    }
    assert found["aerobee_connections_refused_total"] == {
        labels(reason="limit"): 5.0,
        labels(reason="proxy_header"): 6.0,
    }
    assert found["aerobee_access_delayed_total"] == {frozenset(): 2.0}
    assert found["aerobee_access_audit_lines_lost_total"] == {frozenset(): 1.0}
    assert set(parts.observed.turned_away()) == {"limit", *BROKEN_OFF}
    assert set(parts.observed.access().refused) == set(REASONS)


async def test_every_topic_and_group_with_messages_has_its_series(parts: Parts) -> None:
    for number in range(500):
        parts.stats.put(f"T{number}", 1, 1)
        parts.stats.got(("g", f"T{number}"), 1, 1)
    found = {family.name: family for family in families(take_snapshot(replace(parts.observed, facts=dict)))}
    assert len(found["rocketmq_messages_in"].rows) == 500
    assert len(found["rocketmq_throughput_out"].rows) == 500


async def test_a_taken_port_that_nobody_set_is_a_warning_and_one_that_is_set_refuses_the_start(
    parts: Parts, server: MetricsServer
) -> None:
    """A second broker with a port of its own in its file started without the metrics that were asked for."""
    config = parts.config.model_copy(update={"metrics_prom_exporter_port": server.port})
    parts.live.value = config
    second = MetricsServer(parts.observed)
    with capture_logs() as logs, pytest.raises(CannotListen) as refused:
        await second.start()
    assert logs == []
    reason, way_out = explain(refused.value)
    assert f"{server.port} is taken by " in reason
    assert "set metricsPromExporterPort to another port" in way_out
    config.model_fields_set.discard("metrics_prom_exporter_port")
    with capture_logs() as logs:
        await second.start()
    (logged,) = logs
    assert (logged["event"], logged["log_level"], logged["reason"]) == (
        "metrics.not_served",
        "warning",
        reason,
    )
    assert second.port == 0
    await second.close()


class TestHealth:
    async def test_a_well_broker_is_live_and_ready(self, server: MetricsServer) -> None:
        for path in ("/health", "/livez", "/readyz", "/startupz"):
            status, body = await get(server.port, path)
            content = json.loads(body)
            assert (status, content["status"]) == (200, "ok")
            assert content["checks"].keys() == {"store", "disk", "nameservers", "flush"}
            assert all(check["reason"] for check in content["checks"].values())

    async def test_a_closed_store_needs_a_restart(self, parts: Parts, server: MetricsServer) -> None:
        parts.store.close()
        for path in ("/readyz", "/livez"):
            status, body = await get(server.port, path)
            assert status == 503
            assert json.loads(body)["status"] == "failing"

    async def test_a_full_disk_is_not_ready_but_live(self, parts: Parts) -> None:
        health = health_of(parts.observed, (100, 5))
        assert (health.is_ready, health.is_live) == (False, True)

    @pytest.mark.parametrize(
        ("registered", "ready"), [([], True), ([True], True), ([False], False), ([True, False], True)]
    )
    async def test_one_nameserver_is_enough(self, registered: list[bool], ready: bool, parts: Parts) -> None:
        for number, yes in enumerate(registered):
            state = NameserverState(f"ns{number}:9876")
            state.registered, state.reason = yes, "" if yes else "the connection was lost"
            parts.registrar._states[state.addr] = state
        health = health_of(parts.observed, DISK)
        assert health.is_ready is ready
        assert health.is_live
        checks: Any = health.to_json(ok=ready)["checks"]
        for number, yes in enumerate(registered):
            assert (f"ns{number}:9876: the connection was lost" in checks["nameservers"]["reason"]) is not yes


async def test_health_and_the_state_of_a_broker_show_the_same_figures_of_the_disk(
    parts: Parts,
) -> None:
    """Each had figures of its own, and each asked the file system for them."""
    asked = list[Path]()

    def look(folder: Path) -> Figures:
        asked.append(folder)
        return DISK

    disk = DiskFigures(lambda: parts.config.store_path_root_dir, clock=lambda: 0.0, look=look)
    observed, table = replace(parts.observed, disk=disk), HandlerTable()
    BrokerHandlers(
        store=parts.store,
        topics=parts.topics,
        offsets=parts.offsets,
        stats=parts.stats,
        observed=observed,
        clean=parts.cleaner.request,
    ).register(table)
    async with serving(parts, observed) as server:
        assert (await get(server.port, "/health"))[0] == 200
    assert (await Peer(table).ask(RequestCode.GET_BROKER_RUNTIME_INFO)).code == 0
    assert asked == [parts.config.store_path_root_dir]
