"""docs/client.md: every example runs as it stands there, and prints what its comments say."""

import contextlib
import io
import logging
import re
import textwrap
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from aerobee import Client
from system.test_client import cluster

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "client.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```python\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
TOPICS = ("orders", "returns", "reminders", "questions", "jobs", "typed", "greetings")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What an example sets up for its program is not left to other tests."""
    loggers = [logging.getLogger(name) for name in (None, "aerobee", "aerobee.producer")]
    before = [(logger, list(logger.handlers), logger.level) for logger in loggers]
    yield
    for logger, handlers, level in before:
        logger.handlers[:] = handlers
        logger.setLevel(level)


@pytest.fixture
async def mq(tmp_path: Path) -> AsyncIterator[Client]:
    async with cluster(tmp_path, recall_message_enable=True) as running:
        for topic in TOPICS:
            await running.mq.admin.create_topic(topic, queues=4)
        yield running.mq


async def test_every_example_prints_what_it_says(mq: Client) -> None:
    assert len(EXAMPLES) == 13
    for example in EXAMPLES:
        expected = re.findall(r"# -> (.*)", example)
        assert await printed_by(example, mq) == expected, example


async def printed_by(example: str, mq: Client) -> list[str]:
    """Run one example as the body of a coroutine that has `mq`."""
    names: dict[str, Any] = {}
    body = textwrap.indent(example, "    ")
    exec(f"import asyncio\nimport aerobee\n\nasync def example(mq):\n{body}", names)
    with contextlib.redirect_stdout(io.StringIO()) as out:
        await names["example"](mq)
    return [line for line in out.getvalue().splitlines() if not re.match(r"\d{4}-\d\d-\d\d ", line)]
