"""The port for metrics and probes, whoever opens it."""

import asyncio
import json
import socket
from importlib.metadata import version

from structlog.testing import capture_logs

from aerobee_service.operators.http_responder import Page
from aerobee_service.operators.operators_port import OperatorsPort, health_page
from aerobee_service.program.release import VERSION_OF_AEROBEE


async def well() -> Page:
    return health_page({"status": "ok"}, ok=True)


async def test_pages_are_served_from_start_to_close() -> None:
    port = OperatorsPort({"/health": well})
    with capture_logs() as logs:
        await port.listen("127.0.0.1", 0, is_set=False)
    assert [(line["event"], line["port"]) for line in logs] == [("metrics.served", port.port)]
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(b"GET /health HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
    await port.close()
    assert port.port == 0


async def test_a_taken_port_is_a_warning() -> None:
    port = OperatorsPort({"/health": well})
    with socket.create_server(("127.0.0.1", 0)) as taken, capture_logs() as logs:
        await port.listen("127.0.0.1", taken.getsockname()[1], is_set=False)
    assert [(line["event"], line["log_level"]) for line in logs] == [("metrics.not_served", "warning")]
    assert port.port == 0
    await port.close()


def test_a_probe_reads_its_reasons_as_json() -> None:
    page = health_page({"status": "failing", "checks": {"disk": "full"}}, ok=False)
    assert (page.status, page.content_type) == (503, "application/json")
    assert json.loads(page.body) == {"status": "failing", "checks": {"disk": "full"}}


def test_the_version_is_the_one_of_the_package() -> None:
    assert version("aerobee") == VERSION_OF_AEROBEE
