"""Whom bounds of one host count."""

import pytest

from aerobee_service.neighbours import neighbours_of


@pytest.mark.parametrize(
    ("host", "counted_as"),
    [
        ("10.0.0.7", "10.0.0.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::ffff:10.0.0.7", "10.0.0.7"),
        ("::1", "::1"),
        ("", ""),
        ("no:address", "no:address"),
    ],
)
def test_an_address_is_counted_as_whoever_has_it(host: str, counted_as: str) -> None:
    assert neighbours_of(host) == counted_as
