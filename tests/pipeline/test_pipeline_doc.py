"""The examples of docs/pipeline.md run as they stand there, and its tables name every option."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from aerobee_pytest import Server
from pyspark_aerobee.option_names import TOPIC_OPTIONS, WRITE_OPTIONS
from pyspark_aerobee.schema import COLUMNS
from pyspark_aerobee.store_source import STORE_OPTIONS

pytestmark = pytest.mark.timeout(400)
TEXT = (Path(__file__).resolve().parent.parent.parent / "docs" / "pipeline.md").read_text(encoding="utf-8")
SECTIONS = dict(part.split("\n", 1) for part in TEXT.split("\n## ")[1:])
EXAMPLES = {
    title: text.partition("```python\n")[2].partition("```")[0]
    for title, text in SECTIONS.items()
    if "```python" in text
}


@pytest.fixture(scope="module")
def names(spark: SparkSession, server: Server, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the examples find: 60 orders in a cluster, and a copy of its store."""
    with server.sync_client() as mq:
        for topic in ("orders", "orders-again"):
            mq.admin.create_topic(topic, queues=4)
        with mq.producer() as producer:
            for number in range(60):
                tag = ("new", "paid")[number % 2]
                producer.send("orders", f"order{number % 10}", tags=tag, keys=f"o-{number}", queue=number % 4)
        assert mq.query("orders", key="o-59")  # what was asked for is in the index, all before it too
    folder = tmp_path_factory.mktemp("pipeline")
    shutil.copytree(server.store, folder / "store")
    lake = folder / "lake"
    return {
        "spark": spark, "nameserver": server.nameserver, "store": str(folder / "store"), "lake": str(lake)
    }  # fmt: skip


def test_there_are_three() -> None:
    assert list(EXAMPLES) == ["A stream into Parquet", "SQL over a copy of a store", "A backfill"]


@pytest.mark.parametrize("title", EXAMPLES)
def test_an_example_prints_what_it_says(
    names: dict[str, Any], title: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = EXAMPLES[title]
    # Brokers of tests have a small index.
    code = code.replace('.option("key", ', '.option("indexSlots", 1000).option("key", ')
    exec(compile(code, f"docs/pipeline.md: {title}", "exec"), dict(names))
    expected = re.findall(r"# -> (.*)$", code, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == expected


SPARKS_OWN = {"checkpointLocation", "queryName"}


@pytest.mark.parametrize("name", sorted({*STORE_OPTIONS, *TOPIC_OPTIONS, *WRITE_OPTIONS} - SPARKS_OWN))
def test_every_option_is_in_a_table(name: str) -> None:
    options = TEXT[TEXT.index("## Options") : TEXT.index("## Jobs")]
    assert f"`{name}`" in options


@pytest.mark.parametrize("name", COLUMNS)
def test_every_column_is_in_the_table(name: str) -> None:
    assert f"| {name} |" in TEXT
