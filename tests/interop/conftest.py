"""Servers that the official programs judge, and the rule for machines without Java.

With AEROBEE_INTEROP_CONTROL=1 each test also runs against the official servers: what fails there is wrong in the test.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import official
from client_scenarios import BROKER_SETTINGS
from clusters import KINDS, Cluster, start_cluster


@pytest.fixture(scope="session", autouse=True)
def _java() -> None:
    """Have the official programs ready, or skip; in CI they must be there."""
    reason = official.get_ready()
    if reason and os.environ.get("CI") == "true":
        pytest.fail(reason)
    if reason:
        pytest.skip(reason)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Cluster]]:
    """The cluster of a kind that those tests of a module share which need no settings of their own and stop nothing.

    Each uses topics and groups of its own. It is started by the first who asks, and ends with the module: an official
    broker with nothing to do takes a tenth of a processor.
    """
    started: dict[str, Cluster] = {}
    with contextlib.ExitStack() as stack:

        def get(kind: str) -> Cluster:
            if kind not in started:
                folder = tmp_path_factory.mktemp(kind)
                started[kind] = stack.enter_context(start_cluster(kind, folder, BROKER_SETTINGS))
            return started[kind]

        yield get


@pytest.fixture(scope="module", params=KINDS)
def cluster(request: pytest.FixtureRequest, shared: Callable[[str], Cluster]) -> Cluster:
    """The shared cluster of ours, that official programs judge."""
    return shared(request.param)


@pytest.fixture(scope="module", params=["ours", "official"])
def either(request: pytest.FixtureRequest, shared: Callable[[str], Cluster]) -> Cluster:
    """The shared cluster of each kind, for our client must work with both alike."""
    return shared(request.param)


@pytest.fixture(params=KINDS)
def own_cluster(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Cluster]:
    """A cluster for one test alone, which may stop or kill it."""
    with start_cluster(request.param, tmp_path) as started:
        yield started
