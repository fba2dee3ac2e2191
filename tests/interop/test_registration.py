"""Brokers and nameservers of both kinds together: each registers at the other, traffic goes through."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

import official
import ours
from plain_remoting import has_route, wait_route

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.spread, pytest.mark.timeout(300)]

COUNT = 400


def test_our_broker_registers_at_official_and_own_nameservers_at_once(tmp_path: Path) -> None:
    with (
        official.start_nameserver(tmp_path) as first,
        official.start_nameserver(tmp_path) as second,
        ours.start_nameserver() as third,
    ):
        addresses = [server.address for server in (first, second, third)]
        with ours.start_broker(tmp_path, ";".join(addresses)) as broker:
            for address in addresses:
                wait_route(address, "TBW102", "broker-a")
            pass_messages(first.address, "AtOfficial")
            wait_route(second.address, "AtOfficial", "broker-a")
            assert broker.stop() == 0
        assert [has_route(address, "TBW102", "broker-a") for address in addresses] == [False] * 3


def test_an_official_broker_registers_at_our_nameserver_and_serves_through_it(tmp_path: Path) -> None:
    with contextlib.ExitStack() as stack:
        nameserver = stack.enter_context(ours.start_nameserver())
        broker = stack.enter_context(official.start_broker(tmp_path, nameserver.address))
        pass_messages(nameserver.address, "AtOurs")
        listed = official.mqadmin(nameserver.address, "clusterList")
        assert broker.address in listed.split()
        broker.stop()
        assert not has_route(nameserver.address, "TBW102", "broker-a")


def test_two_brokers_of_both_kinds_share_a_topic(tmp_path: Path) -> None:
    """Messages of one producer spread over both brokers, and one consumer reads both."""
    with contextlib.ExitStack() as stack:
        nameserver = stack.enter_context(ours.start_nameserver())
        at = nameserver.address
        stack.enter_context(ours.start_broker(tmp_path / "a", at, name="broker-a"))
        theirs = stack.enter_context(official.start_broker(tmp_path / "b", at, name="broker-b"))
        official.mqadmin(at, "updateTopic", "-c", "DefaultCluster", "-t", "Shared", "-r", "4", "-w", "4")
        for name in ("broker-a", "broker-b"):
            wait_route(at, "Shared", name)
        pass_messages(at, "Shared")
        theirs.kill()


def pass_messages(nameserver: str, topic: str) -> None:
    """Send by one official client and read by another; both must report the same."""
    sent = official.judge("send", namesrv=nameserver, topic=topic, modes="sync,batch", each=COUNT, run=topic)
    assert (sent["failed"], sent.get("firstFailure"), sent["distinct"]) == (0, None, 2 * COUNT)
    got = official.judge(
        "lite", namesrv=nameserver, topic=topic, group=f"g-{topic}", filter="*", expect=2 * COUNT
    )
    assert (got["byTag"], got["duplicates"], got["placesReused"]) == (sent["byTag"], 0, 0)
