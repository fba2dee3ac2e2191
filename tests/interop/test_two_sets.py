"""A topic that lives on two sets: an official producer goes on by the other one at once, without asking for routes."""

from __future__ import annotations

from pathlib import Path

import pytest

import official
import ours
from plain_remoting import make_topic, wait_until
from system.elected import Pulse

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(200)]

TOPIC = "OnTwo"
LATEST_S = 10.0  # its routes are half a minute old by then


def test_an_official_producer_goes_on_by_the_other_set(tmp_path: Path) -> None:
    pulse, until = Pulse(), tmp_path / "until"
    with (
        ours.start_nameserver() as nameserver,
        ours.start_broker(tmp_path / "a", nameserver.address, name="set-a") as first,
        ours.start_broker(tmp_path / "b", nameserver.address, name="set-b") as second,
    ):
        for name, broker in (("set-a", first), ("set-b", second)):
            make_topic(nameserver.address, broker.address, TOPIC, queues=4, broker_name=name)
        with official.start_judge(
            "endure",
            namesrv=nameserver.address,
            topic=TOPIC,
            run="t",
            journal=tmp_path / "journal",
            until=until,
            on_line=lambda _: pulse.beat(),
        ) as producer:
            producer.wait_line("^AT 100$", 60)
            pulse.begin()
            first.kill()
            wait_until(lambda: pulse.count > 20, "sends are answered again", 60)
            silent_s = pulse.silent_s
            until.touch()
            report = official.result_of(producer)
    print(f"no answer for {silent_s:.2f} s, {report}")
    assert silent_s < LATEST_S
    assert report["failed"] == 0
