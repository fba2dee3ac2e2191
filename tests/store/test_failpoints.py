"""Failpoints: nothing unless armed."""

import pytest

from aerobee_store import failpoints


def test_an_armed_point_acts_until_it_is_disarmed() -> None:
    passed: list[str] = []
    failpoints.hit("test.point")
    failpoints.arm("test.point", lambda: passed.append("hit"))
    failpoints.hit("test.point")
    failpoints.hit("test.other")
    failpoints.disarm("test.point")
    failpoints.disarm("test.point")
    failpoints.hit("test.point")
    assert passed == ["hit"]


def test_the_block_disarms_also_after_an_error() -> None:
    def fault() -> None:
        raise OSError("armed")

    with pytest.raises(OSError, match="armed"), failpoints.armed("test.point", fault):
        failpoints.hit("test.point")
    failpoints.hit("test.point")
