"""Servers that the official programs judge, and the rule for machines without Java.

With AEROBEE_INTEROP_CONTROL=1 each test also runs against the official servers: what fails there is wrong in the test.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import official
from clusters import KINDS, Cluster, start_cluster


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    """Have the official programs ready, or skip; in CI they must be there."""
    reason = official.get_ready()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster that the tests of one module share."""
    with start_cluster(request.param, tmp_path_factory.mktemp(request.param)) as started:
        yield started


@pytest.fixture(params=KINDS)
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test alone, which may stop or kill it."""
    with start_cluster(request.param, tmp_path) as started:
        yield started
