"""When a worker is started again, and what a service ends with."""

import re
from pathlib import Path

import pytest

from aerobee_broker.workers.restarts import FINAL, PAUSES_S, SOUND_AFTER_S, Restarts, worst

UNIT = Path(__file__).resolve().parents[3] / "deploy" / "systemd" / "aerobee-broker.service"


def test_pauses_grow_to_a_minute_and_stay_there() -> None:
    restarts = Restarts()
    found = [restarts.pause_after(1, 0.0) for _ in range(12)]
    assert found[: len(PAUSES_S)] == list(PAUSES_S)
    assert set(found[len(PAUSES_S) :]) == {60.0}


def test_who_has_served_for_a_while_begins_with_the_shortest() -> None:
    restarts = Restarts()
    for _ in range(5):
        restarts.pause_after(-9, 1.0)
    assert restarts.pause_after(-9, SOUND_AFTER_S) == PAUSES_S[0]
    assert restarts.pause_after(-9, SOUND_AFTER_S - 1) == PAUSES_S[1]


@pytest.mark.parametrize("code", FINAL)
def test_a_person_has_to_look_first(code: int) -> None:
    assert Restarts().pause_after(code, 1000.0) is None


def test_the_codes_are_those_after_which_systemd_starts_no_broker_again() -> None:
    found = re.search(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert found is not None
    assert {int(word) for word in found[1].split()} | {0} == FINAL.keys()


@pytest.mark.parametrize(
    ("codes", "code"),
    [([], 0), ([0, 0], 0), ([0, -9], 1), ([1, 2, 0], 2), ([2, 66, 1], 66), ([66, 74, 0], 74)],
)
def test_a_service_ends_with_what_needs_a_person_most(codes: list[int], code: int) -> None:
    assert worst(codes) == code
