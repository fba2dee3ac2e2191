"""A set that is announced by one address, that of a forwarder: an official producer goes on without other routes."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import official
import ours
from etcd import EtcdServer
from plain_remoting import call, make_topic, wait_until
from programs import Server, free_port
from system.elected import NAME, Pulse

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.alone]

HA_STATUS = 907
LATEST_S = 5.0
VIRTUAL = "127.0.0.1"
TOPIC = "Stable"


def is_master(address: str) -> bool:
    try:
        return bool(json.loads(call(address, HA_STATUS, timeout_s=0.5)[1]).get("master"))
    except (OSError, ValueError):
        return False


class Forwarder:
    """Leads each connection to the member that says that it is master, and hangs up where there is none."""

    def __init__(self, port: int, members: list[str]) -> None:
        self._members = members
        self._server = socket.create_server((VIRTUAL, port))
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._server.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        master = next(filter(is_master, self._members), None)
        with client, contextlib.suppress(OSError):
            if master is None:
                return
            host, port = master.split(":")
            with socket.create_connection((host, int(port)), 1) as onward:
                for end in (client, onward):
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                threading.Thread(target=_copy, args=(client, onward), daemon=True).start()
                _copy(onward, client)

    def close(self) -> None:
        self._server.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        source.settimeout(None)
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def members(tmp_path: Path) -> Iterator[tuple[str, dict[str, Server]]]:
    """A nameserver, and members by their own addresses; all are announced by the forwarder's."""
    port = free_port(-2, 1)
    own = {member: f"127.0.1.{member}" for member in (1, 2, 3)}
    with contextlib.ExitStack() as stack:
        etcd = EtcdServer(tmp_path / "etcd")
        stack.callback(etcd.kill)
        nameserver = stack.enter_context(ours.start_nameserver()).address
        stack.callback(Forwarder(port, [f"{host}:{port}" for host in own.values()]).close)
        servers = {}
        for member, host in own.items():
            config = {
                "brokerId": member,
                "brokerIP1": VIRTUAL,
                "brokerIP2": host,
                "bindAddress": host,
                "totalReplicas": 3,
                "minInSyncReplicas": 2,
                "flushDiskType": "ASYNC_FLUSH",
                "electionEndpoints": etcd.address,
            }
            folder = tmp_path / str(member)
            server = ours.start_broker(folder, nameserver, name=NAME, port=port, config=config)
            stack.callback(server.kill)
            servers[f"{host}:{port}"] = server
        yield nameserver, servers


def in_sync(address: str) -> int:
    return int(json.loads(call(address, HA_STATUS)[1])["inSyncSlaveNums"])


def test_an_official_producer_goes_on_within_seconds(
    members: tuple[str, dict[str, Server]], tmp_path: Path
) -> None:
    nameserver, servers = members
    wait_until(lambda: any(map(is_master, servers)), "a master", 30)
    master = next(filter(is_master, servers))
    wait_until(lambda: in_sync(master) == 2, "all are in sync", 60)
    make_topic(nameserver, master, TOPIC, queues=4, broker_name=NAME)
    pulse, until = Pulse(), tmp_path / "until"
    with official.start_judge(
        "endure",
        namesrv=nameserver,
        topic=TOPIC,
        run="s",
        journal=tmp_path / "journal",
        until=until,
        on_line=lambda _: pulse.beat(),
    ) as producer:
        producer.wait_line("^AT 100$", 60)
        pulse.begin()
        servers[master].kill()
        wait_until(lambda: pulse.count > 20, "sends are answered again", 60)
        silent_s = pulse.silent_s
        until.touch()
        report = official.result_of(producer)
    print(f"no answer for {silent_s:.2f} s, {report}")
    assert silent_s < LATEST_S
