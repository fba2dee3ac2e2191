"""Workers as users start them: real brokers, one supervisor, a nameserver."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trustme

import ours
from aerobee import Client, ClientError, ProducerConfig
from aerobee_broker.workers.layout import plan_workers
from aerobee_broker.workers.service import worker_command
from broker.settings.test_config import load
from client_scenarios import routed
from programs import Server, free_port
from service.tls.certificates import write_pair

READY = r'"workers\.ready"'
PATIENCE_S = 90.0  # a busy machine takes ten times what a quiet one does


@pytest.fixture(scope="module")
def nameserver() -> Iterator[str]:
    with ours.start_nameserver() as started:
        yield started.address


class Service:
    """A service of two workers in `folder`, and how to look at it."""

    def __init__(
        self, folder: Path, nameserver: str, *words: str, name: str = "broker-a", **settings: object
    ) -> None:
        self.root = folder / "store"
        self.nameserver = nameserver
        self.port = free_port(1, 10, 11)
        self.metrics_port = free_port(10, 20)
        values = {
            "brokerName": name,
            "storePathRootDir": self.root,
            "namesrvAddr": nameserver,
            "bindAddress": "127.0.0.1",
            "brokerIP1": "127.0.0.1",
            "listenPort": self.port,
            "haListenPort": self.port + 1,
            "metricsPromExporterPort": self.metrics_port,
            "mappedFileSizeCommitLog": 1 << 20,
            "mappedFileSizeConsumeQueue": 20_000,
            "maxHashSlotNum": 500,
            "maxIndexNum": 2000,
            **settings,
        }
        pairs = [word for key, value in values.items() for word in ("--set", f"{key}={value}")]
        self.command = [*ours.command(), "broker", *(words or ("--workers", "2")), *pairs]

    @contextlib.contextmanager
    def running(self) -> Iterator[Server]:
        with Server("service", self.command, f"127.0.0.1:{self.port}", READY) as started:
            try:
                yield started
            finally:
                started.stop()

    def page(self, path: str, tls: ssl.SSLContext | None = None, token: str = "") -> tuple[int, str]:
        address = f"http{'s' if tls else ''}://127.0.0.1:{self.metrics_port}{path}"
        request = urllib.request.Request(
            address, headers={"Authorization": f"Bearer {token}"} if token else {}
        )
        try:
            with urllib.request.urlopen(request, timeout=10, context=tls) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()

    def is_closed(self, number: int) -> bool:
        """Whether the worker stopped in order."""
        folder = self.root / f"worker-{number}"
        return (folder / "lock").exists() and not (folder / "abort").exists()


def events(server: Server, name: str) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in server.output.splitlines() if line.startswith("{")]
    return [entry for entry in found if entry["event"] == name]


def pid_of(server: Server, worker: str) -> int:
    return [int(entry["pid"]) for entry in events(server, "worker.started") if entry["worker"] == worker][-1]


async def test_two_workers_are_one_service(tmp_path: Path, nameserver: str) -> None:
    service = Service(tmp_path, nameserver, name="both")
    with service.running() as server:
        async with Client(nameserver) as client:
            # A try that a busy machine does not answer in time is repeated, and its message is there twice then.
            patient = ProducerConfig(try_timeout_s=PATIENCE_S, send_timeout_s=PATIENCE_S)
            # Whichever of them gets the first message, both have the topic from then on.
            async with client.producer(config=patient) as producer:
                first = await producer.send("Shared", b"first")
                other = "both-2" if first.queue.broker_name == "both-1" else "both-1"
                server.wait_line(f'"broker.topic_created","worker":"{other}","topic":"Shared"', PATIENCE_S)
            await routed(client, "Shared", {"both-1", "both-2"})
        # Another client: a route that is known may be of the moment when one of the two had told the nameserver.
        async with Client(nameserver) as client:
            async with client.producer(config=patient) as producer:
                sent = [await producer.send("Shared", b"%d" % number) for number in range(32)]
            assert {one.queue.broker_name for one in sent} == {"both-1", "both-2"}
            description = await client.admin.describe_topic("Shared")
            assert description.message_count == 33
            # Groups and topics that are made on purpose, in one command.
            await client.admin.create_topic("Made", queues=3)
            await client.admin.create_group("readers")
            for worker in ("both-1", "both-2"):
                assert (await client.admin.broker_topics(worker))["Made"].write_queue_nums == 3
                figures = await client.admin.broker_runtime_info(worker)
                assert figures["aerobeeWorker"] == f"{worker[-1]} of 2 of both"
        status, page = service.page("/metrics")
        assert status == 200
        assert 'aerobee_worker_up{worker="both-2"} 1.0' in page
        assert page.count("# TYPE rocketmq_messages_in_total counter") == 1
        for worker in ("both-1", "both-2"):
            assert f'rocketmq_messages_in_total{{worker="{worker}",' in page
            assert f'process_resident_memory_bytes{{worker="{worker}"}}' in page
        for path in ("/health", "/readyz", "/startupz", "/livez"):
            status, page = service.page(path)
            assert (status, json.loads(page)["workers"].keys()) == (200, {"both-1", "both-2"})
        assert server.stop() == 0
    assert service.is_closed(1)
    assert service.is_closed(2)
    said = [json.loads(line) for line in server.output.splitlines()]
    assert {entry.get("worker") for entry in said} == {None, "both-1", "both-2"}
    assert {entry["worker"] for entry in said if entry["event"].startswith(("broker.", "store."))} == {
        "both-1",
        "both-2",
    }


async def test_a_worker_that_is_killed_under_load_loses_nothing_and_comes_back(
    tmp_path: Path, nameserver: str
) -> None:
    service = Service(tmp_path, nameserver, name="kill")
    with service.running() as server:
        async with Client(nameserver) as client:
            await client.admin.create_topic("Killed", queues=2)
            stored: set[bytes] = set()
            many, killed = asyncio.Event(), asyncio.Event()

            async def load(prefix: int) -> None:
                async with client.producer() as producer:
                    number = 0
                    # Some from before, while and after.
                    while number < 100 or not killed.is_set():
                        body = b"%d-%d" % (prefix, number)
                        number += 1
                        with contextlib.suppress(ClientError):
                            await producer.send("Killed", body)
                            stored.add(body)
                            if len(stored) >= 50:
                                many.set()

            loads = [asyncio.create_task(load(prefix)) for prefix in range(4)]
            await many.wait()
            before = pid_of(server, "kill-1")
            os.kill(pid_of(server, "kill-2"), signal.SIGKILL)
            await asyncio.to_thread(
                server.wait_line, r'"worker\.ended","worker":"kill-2","exit_code":-9', PATIENCE_S
            )
            status, page = await asyncio.to_thread(service.page, "/readyz")
            assert status == 200, page  # one of them serves
            await asyncio.to_thread(
                server.wait_line, r'"store\.recovered","worker":"kill-2","aborted":true', PATIENCE_S
            )
            killed.set()
            await asyncio.gather(*loads)
            assert pid_of(server, "kill-1") == before
            found: set[bytes] = set()
            async with asyncio.timeout(PATIENCE_S):
                while not stored <= found:  # until the nameserver has both workers again
                    with contextlib.suppress(ClientError):
                        async for message in client.reader("Killed", end="now"):
                            found.add(message.body)
        assert server.stop() == 0
    assert len(events(server, "worker.ended")) == 1


def test_workers_end_in_order_when_their_supervisor_is_killed(tmp_path: Path, nameserver: str) -> None:
    service = Service(tmp_path, nameserver, name="orphan")
    with service.running() as server:
        server.kill()  # returns when nobody writes to its output any more
        assert len(events(server, "worker.supervisor_lost")) == 2
        assert len(events(server, "broker.stopped")) == 2
    assert service.is_closed(1)
    assert service.is_closed(2)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_every_signal_that_stops_one_broker_stops_all(tmp_path: Path, nameserver: str, number: int) -> None:
    """And with TLS for whoever scrapes, the supervisor asks the workers without; and with the token of all of them."""
    authority = trustme.CA()
    certificate, key = write_pair(authority, tmp_path, "127.0.0.1")
    token = tmp_path / "token"
    token.write_text("a-token-of-24-characters")
    token.chmod(0o600)
    settings = {
        "metricsPromExporterTls": "true",
        "tlsServerCertPath": certificate,
        "tlsServerKeyPath": key,
        "metricsPromExporterTokenPath": token,
    }
    service = Service(tmp_path, nameserver, name="signals", **settings)
    trusting = ssl.create_default_context()
    authority.configure_trust(trusting)
    with service.running() as server:
        status, page = service.page("/metrics", trusting, token.read_text())
        assert (status, page.count("\nrocketmq_broker_permission{")) == (200, 2)
        _, health = service.page("/readyz", trusting, token.read_text())
        assert all(one["checks"] for one in json.loads(health)["workers"].values())
        assert service.page("/metrics", trusting) == (401, "this needs credentials\n")
        assert service.page("/readyz", trusting) == (200, "ok\n")
        server.process.send_signal(number)
        assert server.process.wait(PATIENCE_S) == 0
    assert service.is_closed(1)
    assert service.is_closed(2)
    assert not events(server, "worker.left_down")


def test_one_whose_port_is_taken_waits_for_it_and_the_other_serves(tmp_path: Path, nameserver: str) -> None:
    service = Service(tmp_path, nameserver, name="taken")
    with contextlib.closing(socket.socket()) as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", service.port + 10))
        other.listen()
        with service.running() as server:
            (ready,) = events(server, "workers.ready")
            assert ready["names"] == ["taken-1"]
            (failed,) = events(server, "broker.start_failed")
            assert failed["worker"] == "taken-2"
            assert f":{service.port + 10} is taken" in failed["reason"]
            server.wait_line(r'"broker\.registered","worker":"taken-1"', PATIENCE_S)
            assert service.page("/readyz")[0] == 200
            assert service.page("/health")[0] == 503
            other.close()
            server.wait_line(r'"broker\.ready","worker":"taken-2"', PATIENCE_S)
            assert server.stop() == 0


def test_what_cannot_be_is_said_before_anything_starts(tmp_path: Path, nameserver: str) -> None:
    """As the one store of a broker, and as a folder of more workers than are asked for."""
    service = Service(tmp_path, nameserver, "--workers", "2")
    (service.root / "commitlog").mkdir(parents=True)
    refused = _run(service.command)
    assert refused[0] == 2
    assert "docs/operations.md#several-workers" in refused[1]
    assert sorted(path.name for path in service.root.iterdir()) == ["commitlog"]
    wrong = _run([*service.command, "--set", "listenPort=65530"])
    assert wrong[0] == 2
    assert "listenPort = 65540" in wrong[1]


def test_a_worker_is_started_with_what_it_has_of_its_own(tmp_path: Path) -> None:
    """Whatever way a key is written in: the worker's own wins."""
    config = load(workers="2", broker_name="x", storePathRootDir=str(tmp_path))
    command = worker_command(Path("b.conf"), {"broker_name": "x", "workers": "2", "maxIndexNum": "9"})
    words = list(command(plan_workers(config)[1]))
    assert words[:5] == [sys.executable, "-m", "aerobee_broker", "-c", "b.conf"]
    pairs = words[6::2]
    assert "brokerName=x-2" in pairs
    assert "workers=1" in pairs
    assert "maxIndexNum=9" in pairs
    assert len({pair.partition("=")[0].replace("_", "").lower() for pair in pairs}) == len(pairs)


def _run(command: list[str]) -> tuple[int, str]:
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    return ended.returncode, ended.stderr
