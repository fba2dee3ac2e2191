"""What a nameserver tells about itself over HTTP."""

import asyncio
import json
import signal
import socket
from collections.abc import AsyncIterator
from importlib.metadata import version
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from structlog.testing import capture_logs

from aerobee_access.refusals import FREE, REASONS
from aerobee_access.signature import sign
from aerobee_nameserver.config import NameserverConfig
from aerobee_nameserver.main import serve
from aerobee_nameserver.metrics import MetricsServer
from aerobee_nameserver.server import NameServer
from aerobee_proto.frames import Command
from aerobee_remoting.ends.server import BROKEN_OFF
from aerobee_service.program.systemd import ServiceNotifier
from nameserver.test_main import started
from programs import free_port
from remoting.pair import raw_peer


class Clock:
    now_ms = 1_000_000


async def get(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split(" ")[1]), answer.partition("\r\n\r\n")[2]


def served(**settings: object) -> MetricsServer:
    config = NameserverConfig.model_validate({"bindAddress": "127.0.0.1", "listenPort": 0, **settings})
    return MetricsServer(NameServer(config, keep_kv=False, now_ms=lambda: Clock.now_ms))


@pytest.fixture
async def metrics() -> AsyncIterator[MetricsServer]:
    server = served(metricsPromExporterPort=0, needWaitForService=True, waitSecondsForService=45)
    await server.start()
    yield server
    await server.close()


async def test_a_scrape_shows_version_routes_and_process(metrics: MetricsServer) -> None:
    """A nameserver had neither metrics nor health."""
    status, text = await get(metrics.port, "/metrics")
    assert status == 200
    found = {
        sample.name: sample for family in text_string_to_metric_families(text) for sample in family.samples
    }
    assert found["aerobee_build_info"].labels == {"version": version("aerobee")}
    gauges = ("clusters", "broker_names", "brokers", "topics", "connections")
    assert [found[f"aerobee_nameserver_{name}"].value for name in gauges] == [0.0] * 5
    assert found["aerobee_nameserver_connections_refused_total"].value == 0
    assert found["process_resident_memory_bytes"].value > 0


async def test_who_holds_the_loop_is_counted_by_handler() -> None:
    """Only brokers counted it: a nameserver that was held up said so in its log alone."""
    config = NameserverConfig.model_validate({"bindAddress": "127.0.0.1", "metricsPromExporterPort": 0})
    server = NameServer(config, keep_kv=False, now_ms=lambda: Clock.now_ms)
    server.watch.held[105, "Handlers.route"] = 3
    server.watch.saw(0.007)
    metrics = MetricsServer(server)
    await metrics.start()
    _, text = await get(metrics.port, "/metrics")
    await metrics.close()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert found["aerobee_loop_held_total", "105", "Handlers.route"] == 3.0
    looks = [found["aerobee_loop_looks_total", bound] for bound in ("0.005", "0.01", "+Inf")]
    assert looks == [0.0, 1.0, 1.0]
    assert found["aerobee_loop_late_seconds_total",] == pytest.approx(0.007)


async def test_refusals_are_counted_by_reason(tmp_path: Path) -> None:
    config = NameserverConfig.model_validate(
        {
            "bindAddress": "127.0.0.1",
            "listenPort": 0,
            "metricsPromExporterPort": 0,
            "authenticationEnabled": True,
            "accessFilePath": str(tmp_path / "access.json"),
        }
    )
    server = NameServer(config, keep_kv=False)
    metrics = MetricsServer(server)
    await server.start()
    await metrics.start()
    try:
        async with raw_peer(server.port) as peer:
            for opaque in range(FREE + 1):
                peer.send(Command(105, opaque=opaque, ext_fields={"topic": "T"}))
                assert (await peer.receive()).code == 16
            peer.send(Command(105, ext_fields=sign({"topic": "T"}, b"", "nobody", "secret")))
            assert (await peer.receive()).code == 16
            peer.writer.write(b"PROXY TCP4 1.2.3.4 1.2.3.5 1 2\r\n")
            assert await peer.is_closed_by_the_server()
        _, text = await get(metrics.port, "/metrics")
    finally:
        await metrics.close()
        await server.close()
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    refused = {key[1]: value for key, value in found.items() if key[0] == "aerobee_access_refused_total"}
    assert refused == dict.fromkeys(REASONS, 0.0) | {"unsigned": FREE + 1.0, "unknown": 1.0}
    assert found["aerobee_access_delayed_total",] == 2.0
    assert found["aerobee_access_audit_lines_lost_total",] == 0.0
    turned_away = {
        key[1]: value for key, value in found.items() if key[0] == "aerobee_connections_refused_total"
    }
    assert turned_away == dict.fromkeys(["limit", *BROKEN_OFF], 0.0) | {"proxy_header": 1.0}


async def test_it_is_ready_when_routes_are_answered(
    metrics: MetricsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path, expected in (("/livez", 200), ("/startupz", 200), ("/readyz", 503), ("/health", 503)):
        assert (await get(metrics.port, path))[0] == expected, path
    monkeypatch.setattr(Clock, "now_ms", 1_045_000)
    status, text = await get(metrics.port, "/readyz")
    assert status == 200
    assert json.loads(text) == {
        "status": "ok",
        "checks": {"routes": {"ok": True, "reason": "0 brokers, 0 topics"}},
    }


async def test_a_taken_port_that_nobody_set_is_a_warning_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as logs:
        server = served(metricsPromExporterPort=taken.getsockname()[1])
        server.server.config.model_fields_set.discard("metrics_prom_exporter_port")
        await server.start()
        await server.close()
    (logged,) = logs
    assert (logged["event"], logged["log_level"]) == ("metrics.not_served", "warning")
    assert "metricsPromExporterPort" in logged["way_out"]


def test_a_port_that_is_set_and_taken_refuses_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with capture_logs() as logs:
            config = NameserverConfig.model_validate(
                {
                    "bindAddress": "127.0.0.1",
                    "listenPort": 0,
                    "kvConfigPath": str(tmp_path / "kv.json"),
                    "metricsPromExporterPort": port,
                }
            )
            assert asyncio.run(serve(config, ServiceNotifier({}, 0))) == 1
    (logged,) = [entry for entry in logs if entry["log_level"] == "error"]
    assert logged["event"] == "nameserver.start_failed"
    assert f"127.0.0.1:{port} is taken" in logged["reason"]
    assert "metricsPromExporterPort" in logged["way_out"]
    assert not [entry for entry in logs if entry["event"] == "nameserver.ready"]


def test_it_listens_on_the_loopback_unless_told() -> None:
    assert NameserverConfig().metrics_prom_exporter_host == "127.0.0.1"


async def test_the_program_serves_them_and_says_its_version(tmp_path: Path) -> None:
    port = free_port()
    with started(tmp_path, "--set", f"metricsPromExporterPort={port}") as program:
        ready = json.loads(await asyncio.to_thread(program.wait_line, "nameserver.ready", 30))
        assert ready["version"] == version("aerobee")
        logged = json.loads(await asyncio.to_thread(program.wait_line, "metrics.served", 30))
        assert (logged["host"], logged["port"]) == ("127.0.0.1", port)
        assert (await get(port, "/readyz"))[0] == 200
        program.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(program.process.wait, 30) == 0
