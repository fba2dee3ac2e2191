"""Whose log a slave's is a copy of."""

import pytest

from aerobee_broker.replication.copied_from import CopiedFrom
from aerobee_proto.errors import FormatError


def test_it_is_kept_until_somebody_else_may_have_written() -> None:
    copied = CopiedFrom()
    copied.follow("a")
    copied.follow("a")
    assert (copied.store, copied.revision) == ("a", 1)
    again = CopiedFrom()
    again.take(again.parse(copied.to_json()))
    assert again.store == "a"
    again.forget()
    assert (again.store, again.revision) == ("", 1)


def test_what_is_no_name_is_refused() -> None:
    assert CopiedFrom().parse({}) == ""
    with pytest.raises(FormatError):
        CopiedFrom().parse({"store": 7})
