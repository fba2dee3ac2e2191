"""`aerobee pipeline ...`: the jobs of `pyspark_aerobee`, on a Spark of this machine or of a cluster.

Touches  what the jobs touch; standard output and error. Spark is loaded when a command is called.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from aerobee_console.terminal.failures import FAULT, NOT_FOUND, OK, USAGE, Failure, describe
from aerobee_console.terminal.numbers import COUNT, OFFSET
from aerobee_console.terminal.progress import progress
from aerobee_console.terminal.session import Connect, Output, run
from aerobee_console.terminal.tables import Column, Pair, print_json, print_table
from aerobee_service.clock import epoch_ms

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from aerobee import Client

__all__ = ["app"]

app = App(
    "pipeline",
    help="Archive, restore, audit and measure messages with Spark (extras spark and jdk).",
    help_epilogue="",
)
Store = Annotated[str | None, Parameter(name="--path", help="A store folder, or its fsspec address.")]
Nameserver = Annotated[
    str | None,
    Parameter(
        name=["--nameserver", "-n"],
        help="Nameservers of a cluster, host:port;host:port, in place of --path.",
    ),
]
Cluster = Annotated[
    str,
    Parameter(
        name=["--nameserver", "-n"],
        env_var=["AEROBEE_NAMESERVERS", "NAMESRV_ADDR"],
        help="Nameservers, host:port;host:port.",
    ),
]
Topics = Annotated[str, Parameter(help="Topics, with commas between.")]
Master = Annotated[str, Parameter(help="Spark's master: local[*], spark://host:7077, k8s://...")]
Options = Annotated[
    tuple[str, ...],
    Parameter(name="--option", negative=(), help="A further option of the data source, name=value."),
]
Page = Annotated[Path | None, Parameter(help="Write a page with plots to this file.")]
LOCAL: Final = "local[*]"
NAMESERVER: Final = "127.0.0.1:9876"

GROUP_COLUMNS: Final = (
    Column("group", "group"),
    Column("topic", "topic"),
    Column("lag", "behind", number=True),
    Column("in_flight", "in flight", number=True),
    Column("delay_ms", "oldest ms", number=True),
)
LATENCY_COLUMNS: Final = (
    Column("what", "what"),
    Column("topic", "topic"),
    Column("group", "group"),
    Column("count", "count", number=True),
    Column("failed", "failed", number=True),
    Column("p50_ms", "p50 ms", number=True),
    Column("p99_ms", "p99 ms", number=True),
    Column("max_ms", "max ms", number=True),
)
FACT_COLUMNS: Final = (Column("name", "what"), Column("value", "value"))


@dataclass(slots=True, frozen=True)
class GroupLag:
    """How far a group is behind in a topic, as the job reports it."""

    group: str
    topic: str
    lag: int
    in_flight: int | None
    delay_ms: int | None


@dataclass(slots=True, frozen=True, kw_only=True)
class Latency:
    """How long one step of messages took, as the job reports it: of a topic, of a group, or of both."""

    what: str = field(kw_only=False)
    topic: str = ""
    group: str = ""
    count: int
    failed: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    max_ms: int


# --- looking before Spark starts, which takes many seconds: what is to be read is there -------------------------


@contextmanager
def _errors_explained() -> Iterator[None]:
    """Errors of the jobs' own modules are the user's to mend."""
    try:
        from pyspark_aerobee.errors import PipelineError
    except ModuleNotFoundError as missing:
        raise Failure(describe(missing), USAGE) from missing
    try:
        yield
    except PipelineError as failed:
        raise Failure(str(failed), USAGE) from failed


def _look_into_store(path: str, topics: list[str]) -> None:
    """Failure when there is no store, or none of these topics in it."""
    with _errors_explained():
        from pyspark_aerobee.folder import open_store

        store = open_store(path)
        there = store.topics() if topics else []
    _require("topic", topics, there, f"the store {path}")


def _look_into_archive(address: str, topics: list[str]) -> None:
    """Failure when there is no archive, or none of these topics in it."""
    with _errors_explained():
        from pyspark_aerobee.jobs.manifest import Archive

        there = {file.topic for file in Archive(address).files()}
    if not there:
        raise Failure(f"there is no archive in {address}: give the folder that `archive` wrote", USAGE)
    _require("topic", topics, there, f"the archive {address}")


def _look_into_cluster(nameserver: str, *, topics: Sequence[str] = (), groups: Sequence[str] = ()) -> None:
    """The client's own errors when nobody answers there, or it has none of these topics and groups."""

    async def look(client: "Client") -> None:
        await client.admin.brokers()
        for topic in topics:
            await client.admin.route(topic)
        for group in groups:
            await client.admin.find_group(group)

    run(Connect(nameserver=nameserver), look)


def _require(kind: str, names: Sequence[str], there: Collection[str], where: str) -> None:
    for name in names:
        if name not in there:
            near = get_close_matches(name, sorted(there))
            similar = f"\n  similar: {', '.join(near)}" if near else ""
            raise Failure(f"{where} has no {kind} {name!r}{similar}", NOT_FOUND)


def _look(path: str | None, nameserver: str | None, topics: list[str]) -> None:
    if path is not None:
        _look_into_store(path, topics)
    elif nameserver is not None:
        _look_into_cluster(nameserver, topics=topics)


@contextmanager
def _spark(name: str, master: str) -> "Iterator[SparkSession]":
    """A session; errors of the jobs are the user's to mend."""
    try:
        from pyspark_aerobee.errors import PipelineError
        from pyspark_aerobee.jobs.launch import session
    except ModuleNotFoundError as missing:
        raise Failure(describe(missing), USAGE) from missing
    try:
        with session(name, master) as spark:
            yield spark
    except PipelineError as failed:
        raise Failure(str(failed), USAGE) from failed


def _source(path: str | None, nameserver: str | None, topics: str, option: tuple[str, ...]) -> dict[str, str]:
    if (path is None) == (nameserver is None):
        raise Failure("say what to read: either --path or --nameserver", USAGE)
    given = {"path": path} if path is not None else {"nameServer": nameserver or ""}
    return given | ({"subscribe": topics} if topics else {}) | _pairs(option)


def _pairs(option: tuple[str, ...], name: str = "--option") -> dict[str, str]:
    if wrong := [pair for pair in option if "=" not in pair]:
        raise Failure(f"{name} {wrong[0]}: write it as name=value", USAGE)
    return dict(pair.split("=", 1) for pair in option)


def _now_ms() -> int:
    return epoch_ms()


def _print_facts(report: Mapping[str, object], output: str) -> None:
    if output == "json":
        print_json(report)
    else:
        rows = [Pair(name.replace("_", " "), str(value)) for name, value in report.items()]
        print_table("", FACT_COLUMNS, rows)


@app.command
def archive(
    target: Annotated[str, Parameter(help="Folder or fsspec address of the archive.")],
    /,
    *,
    path: Store = None,
    nameserver: Nameserver = None,
    topics: Topics = "",
    option: Options = (),
    compression: Annotated[str, Parameter(help="zstd, snappy, lz4, gzip or none.")] = "zstd",
    delta: Annotated[
        bool, Parameter(negative=(), help="Keep it a Delta table too (package deltalake).")
    ] = False,
    accept_loss: Annotated[bool, Parameter(negative=(), help="Go on behind messages that are gone.")] = False,
    master: Master = LOCAL,
    output: Output = "table",
) -> int:
    """Copy messages into Parquet files by topic and day: what the archive does not have yet, each exactly once."""
    given = _source(path, nameserver, topics, option)
    if accept_loss and nameserver is not None:
        given["failOnDataLoss"] = "false"
    with _errors_explained():
        from pyspark_aerobee.jobs.spans import source_of

        source = source_of(given, now_ms=_now_ms())
    _look(path, nameserver, _words(topics))
    with _spark("archive", master) as spark:
        from pyspark_aerobee.jobs.archive import archive as job

        with progress(f"archiving to {target}") as advance:
            report = job(
                spark, source, target, compression=compression, delta=delta, fail_on_data_loss=not accept_loss,
                advance=advance,
            )  # fmt: skip
    _print_facts(asdict(report), output)
    return OK


@app.command
def restore(
    source: Annotated[str, Parameter(help="Folder or fsspec address of the archive.")],
    /,
    *,
    nameserver: Cluster = NAMESERVER,
    topics: Topics = "",
    rename: Annotated[
        tuple[str, ...], Parameter(negative=(), help="Write a topic to another one, from=to.")
    ] = (),
    born_within_ms: Annotated[
        int, Parameter(validator=OFFSET, help="Let times of birth be wrong by so much, for speed.")
    ] = 0,
    name: Annotated[str | None, Parameter(help="Under which progress is kept.")] = None,
    option: Options = (),
    master: Master = LOCAL,
    output: Output = "table",
) -> int:
    """Send the messages of an archive again, with their ids, keys, tags, properties and times of birth."""
    renamed = _pairs(rename, "--rename")
    _look_into_archive(source, [*_words(topics), *renamed])
    _look_into_cluster(nameserver)
    with _spark("restore", master) as spark:
        from pyspark_aerobee.jobs.restore import restore as job

        with progress(f"restoring {source}") as advance:
            report = job(
                spark, source, {"nameServer": nameserver} | _pairs(option), topics=_words(topics),
                rename=renamed, born_within_ms=born_within_ms, name=name, advance=advance,
            )  # fmt: skip
    _print_facts(asdict(report), output)
    return OK


@app.command
def audit(
    *,
    path: Store = None,
    nameserver: Nameserver = None,
    topics: Topics = "",
    html: Page = None,
    option: Options = (),
    master: Master = LOCAL,
    output: Output = "table",
) -> int:
    """Count what a store or topics hold, and look for damage, gaps and messages that are there twice.

    Exit code 0: nothing was found; 1: there are findings.
    """
    given = _source(path, nameserver, topics, option)
    if path is not None and topics:
        raise Failure("a store is audited as a whole: --topics goes with --nameserver", USAGE)
    _look(path, nameserver, _words(topics))
    with _spark("audit", master) as spark:
        from pyspark_aerobee.jobs.audit import audit_store, audit_topics, is_sound

        if path is not None:
            with progress(f"reading {path}", in_bytes=True) as advance:
                report = audit_store(
                    spark, path, broker_name=_pairs(option).get("brokerName", ""), advance=advance
                )
        else:
            with progress("reading topics") as advance:
                report = audit_topics(spark, given, now_ms=_now_ms(), advance=advance)
    if html is not None:
        from pyspark_aerobee.jobs.audit_page import audit_page

        html.write_text(audit_page(report), encoding="utf-8")
    if output == "json":
        print_json(report)
    else:
        _print_facts({"messages": report["messages"], **report["findings"]}, output)
    return OK if is_sound(report) else FAULT


@app.command
def reindex(
    target: Annotated[Path, Parameter(help="A new folder for the index.")],
    /,
    *,
    path: Annotated[str, Parameter(help="The store folder.")],
    slots: Annotated[int, Parameter(validator=COUNT, help="The broker's maxHashSlotNum.")] = 5_000_000,
    entries: Annotated[int, Parameter(validator=COUNT, help="The broker's maxIndexNum.")] = 20_000_000,
    master: Master = LOCAL,
    output: Output = "table",
) -> int:
    """Build the key index of a store again from its log, in parallel."""
    _look_into_store(path, [])
    with _spark("reindex", master) as spark:
        from pyspark_aerobee.jobs.reindex import reindex as job

        with progress(f"indexing {path}", in_bytes=True) as advance:
            report = job(spark, path, target, slots=slots, entries=entries, advance=advance)
    _print_facts(asdict(report), output)
    return OK


@app.command
def lag(
    *,
    nameserver: Cluster = NAMESERVER,
    groups: Annotated[str, Parameter(help="Groups, with commas between; all without it.")] = "",
    begin: Annotated[str, Parameter(help="Look at traces since then: -1h, ISO 8601, or ms.")] = "-1h",
    html: Page = None,
    option: Options = (),
    master: Master = LOCAL,
    output: Output = "table",
) -> int:
    """How far groups are behind, by their offsets, and how long messages take, by their traces."""
    _look_into_cluster(nameserver, groups=_words(groups))
    with _spark("lag", master) as spark:
        from pyspark_aerobee.jobs.lag import lag_page, lag_report

        report = lag_report(
            spark,
            {"nameServer": nameserver} | _pairs(option),
            now_ms=_now_ms(),
            groups=_words(groups),
            begin=begin,
        )
    if html is not None:
        html.write_text(lag_page(report), encoding="utf-8")
    if output == "json":
        print_json(report)
        return OK
    print_table("Groups", GROUP_COLUMNS, [GroupLag(**row) for row in report["groups"]])
    rows = [
        Latency(what, **row) for what in ("send", "delivery", "handling") for row in report["latency"][what]
    ]
    if rows:
        print_table("Latency", LATENCY_COLUMNS, rows)
    return OK


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
