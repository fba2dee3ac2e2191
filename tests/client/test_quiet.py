"""The client prints nothing by itself: what it has to say goes to the standard loggers below `aerobee`."""

import subprocess
import sys

import pytest

from aerobee import Client
from aerobee_proto.codes import RequestCode, ResponseCode
from aerobee_remoting.exchange.handlers import Response
from client.events import captured_events
from client.fakes import fake_cluster

PROGRAM = """
import asyncio, logging, sys
{setup}
import aerobee
assert "structlog" not in sys.modules

async def main():
    async with aerobee.Client({nameserver!r}) as mq, mq.producer() as producer:
        async with mq.consumer("g", "T", retry_s=0.01) as consumer:
            failed = asyncio.Event()

            async def handler(message):
                failed.set()
                raise RuntimeError("a handler that fails")

            running = asyncio.create_task(consumer.run(handler))
            await producer.send("T", b"x")
            await failed.wait()
            await consumer.close()
            await running

asyncio.run(main())
assert "structlog" not in sys.modules
"""


async def output_of(setup: str) -> tuple[str, str]:
    """What a program prints whose sends are refused at first, and whose handler fails."""
    import asyncio

    async with fake_cluster() as cluster:
        cluster.broker.script(RequestCode.SEND_MESSAGE_V2, *[Response(ResponseCode.SYSTEM_BUSY, "busy")] * 3)
        code = PROGRAM.format(setup=setup, nameserver=cluster.nameserver.addr)
        done = await asyncio.to_thread(
            subprocess.run, [sys.executable, "-c", code], capture_output=True, text=True, check=False
        )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


async def test_a_program_that_leaves_logging_alone_sees_nothing() -> None:
    """Each group printed `client.rebalanced` to standard output, each retry a line at the level debug."""
    assert await output_of("") == ("", "")


async def test_levels_of_the_standard_module_choose_what_is_seen() -> None:
    """They had no effect."""
    out, err = await output_of("logging.basicConfig()")
    assert out == ""
    assert "ERROR:aerobee.consumer:client.handler_failed" in err
    assert "RuntimeError: a handler that fails" in err
    assert "client.rebalanced" not in err
    _, err = await output_of("logging.basicConfig(level='INFO')")
    assert "INFO:aerobee.consumer:client.rebalanced" in err
    assert "client.send_retried" not in err
    setup = "logging.basicConfig(); logging.getLogger('aerobee.producer').setLevel('DEBUG')"
    _, err = await output_of(setup)
    assert "DEBUG:aerobee.producer:client.send_retried" in err
    assert "client.rebalanced" not in err


@pytest.mark.parametrize("name", ["producer", "consumer", "reader", "client", "trace", "remoting"])
def test_every_logger_that_the_guide_names_is_used(name: str) -> None:
    from pathlib import Path

    root = Path(__file__).resolve().parent.parent.parent
    sources = [
        *(root / "client" / "aerobee").rglob("*.py"),
        *(root / "proto" / "aerobee_remoting").rglob("*.py"),
    ]
    assert any(f'event_logger("aerobee.{name}")' in path.read_text() for path in sources)
    assert f"`aerobee.{name}`" in (root / "docs" / "client.md").read_text()


async def test_a_lost_and_found_connection_is_an_event_of_the_client() -> None:
    async with fake_cluster() as cluster, Client(cluster.nameserver.addr) as mq, mq.producer() as producer:
        await producer.send("T", b"x")
        with captured_events() as events:
            for connection in list(cluster.broker.server.connections):
                connection.abort("the test wants it")
            await producer.send("T", b"y")
    (found,) = [event for event in events if event["event"] == "client.reconnected"]
    assert (found["logger"], found["log_level"]) == ("aerobee.client", "info")
    assert found["addr"] == cluster.broker.addr
