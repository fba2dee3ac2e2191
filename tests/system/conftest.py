"""What the pages of docs/ are tried against."""

from collections.abc import Iterator

import pytest

import ours


@pytest.fixture(scope="module")
def nameserver() -> Iterator[str]:
    """Address of a fresh `aerobee dev`: it serves nothing but what it has by itself, on ports of its own."""
    with ours.start_dev() as started:
        yield started.address
