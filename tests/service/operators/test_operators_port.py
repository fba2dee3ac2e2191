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


async def ask(port: OperatorsPort, path: str) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port.port)
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


async def test_who_comes_while_a_page_is_made_has_the_next_one_with_all_others() -> None:
    """Each scrape was rendered in a thread of its own, four at a time: senders waited for the interpreter."""
    making, go_on = asyncio.Queue[int](), asyncio.Semaphore(0)
    made = 0

    async def make() -> Page:
        nonlocal made
        made += 1
        number = made
        making.put_nowait(number)
        await go_on.acquire()
        return Page(f"page {number}".encode())

    port = OperatorsPort({"/metrics": make, "/other": make})
    await port.listen("127.0.0.1", 0, is_set=False)
    first = asyncio.create_task(ask(port, "/metrics"))
    async with asyncio.timeout(20):
        assert await making.get() == 1
        others = [asyncio.create_task(ask(port, path)) for path in ("/metrics", "/other") * 3]
        go_on.release()
        assert (await first).endswith(b"page 1")
        assert await making.get() == 2
        for _ in range(2):
            go_on.release()
        answers = await asyncio.gather(*others)
    assert all(answer.endswith((b"page 2", b"page 3")) for answer in answers)
    assert made <= 3, "what comes when the second is being made has a third"
    await port.close()


async def test_a_page_that_fails_fails_for_those_who_have_asked_and_is_made_again() -> None:
    fails = True

    async def make() -> Page:
        if fails:
            raise OSError("no disk")
        return Page(b"well")

    port = OperatorsPort({"/metrics": make})
    await port.listen("127.0.0.1", 0, is_set=False)
    assert b" 500 " in (await ask(port, "/metrics")).splitlines()[0]
    fails = False
    assert (await ask(port, "/metrics")).endswith(b"well")
    await port.close()


async def test_a_page_that_is_being_made_does_not_keep_the_port_open() -> None:
    making = asyncio.Event()

    async def make() -> Page:
        making.set()
        await asyncio.Event().wait()
        raise AssertionError("nothing sets it")

    port = OperatorsPort({"/metrics": make})
    await port.listen("127.0.0.1", 0, is_set=False)
    visitors = [asyncio.create_task(ask(port, "/metrics")) for _ in range(3)]
    async with asyncio.timeout(20):
        await making.wait()
        await port.close()
        await asyncio.gather(*visitors, return_exceptions=True)


def test_a_probe_reads_its_reasons_as_json() -> None:
    page = health_page({"status": "failing", "checks": {"disk": "full"}}, ok=False)
    assert (page.status, page.content_type) == (503, "application/json")
    assert json.loads(page.body) == {"status": "failing", "checks": {"disk": "full"}}


def test_the_version_is_the_one_of_the_package() -> None:
    assert version("aerobee") == VERSION_OF_AEROBEE
