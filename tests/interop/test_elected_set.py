"""A set that elects its master: an official producer goes on as soon as it has asked for its routes again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

import official
from plain_remoting import make_topic, wait_until
from system.elected import NAME, TOPIC, Pulse, started

pytestmark = [pytest.mark.java, pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.alone]

ROUTE_S = 1.0  # between two times that it asks; half a minute by default
MORE_S = 2.0  # one, and one more for a busy machine
KILLS = 2


def test_an_official_producer_goes_on_when_it_has_looked_where_the_master_is(tmp_path: Path) -> None:
    """The shorter of two silences counts: the other may be a busy machine's."""
    pulse, until, silent_s = Pulse(), tmp_path / "until", []
    with started(tmp_path) as trio:
        master = trio.wait_master(slaves=2)
        make_topic(trio.nameserver, trio.address(master), TOPIC, queues=4, broker_name=NAME)
        with official.start_judge(
            "endure",
            namesrv=trio.nameserver,
            topic=TOPIC,
            run="e",
            journal=tmp_path / "journal",
            until=until,
            poll=round(ROUTE_S * 1000),
            on_line=lambda _: pulse.beat(),
        ) as producer:
            producer.wait_line("^AT 100$", 60)
            for _ in range(KILLS):
                count = pulse.count
                wait_until(partial(_has_come, pulse, count), "sends are answered", 60)
                pulse.begin()
                trio.members[master].kill()
                count = pulse.count
                wait_until(partial(_has_come, pulse, count + 20), "sends are answered again", 60)
                silent_s.append(pulse.silent_s)
                trio.start(master)
                master = trio.wait_master(master, slaves=2)
            until.touch()
            official.result_of(producer)
        journal = (tmp_path / "journal").read_text().splitlines()
    places = [tuple(line.split()[1:3]) for line in journal]
    assert len(places) == len({*places}) > 100 * KILLS
    print("no answer for", ", ".join(f"{one:.2f} s" for one in silent_s))
    assert min(silent_s) < ROUTE_S + MORE_S


def _has_come(pulse: Pulse, count: int) -> bool:
    return pulse.count > count
