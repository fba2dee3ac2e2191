"""`aerobee store ...`: look into a store folder, whoever wrote it and whether or not it is in use; mend it.

Touches  the folder, reading (`repair` alone changes it); standard output. Exit codes: 0 sound, 1 damaged, 2 unreadable.
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from cyclopts import App, Parameter

from aerobee_console.folder.store import (
    Inspection,
    ScannedRecord,
    inspect,
    look_at,
    rebuild,
    resume_of,
    summaries,
)
from aerobee_console.servers.daemons import Settings, SettingsFile, configure_logs, parse_settings
from aerobee_console.terminal.failures import FAULT, NOT_FOUND, OK, USAGE, Failure
from aerobee_console.terminal.messages import preview, record_facts, time_text
from aerobee_console.terminal.numbers import COUNT, OFFSET, QUEUE_ID
from aerobee_console.terminal.progress import progress
from aerobee_console.terminal.session import Output
from aerobee_console.terminal.tables import Column, as_json, json_line, print_json, print_table, printable

if TYPE_CHECKING:
    from aerobee_console.folder.store import RecoveryReport, Verdict

__all__ = ["app"]

app = App(
    "store",
    help="Verify or dump a store folder, without changing a byte of it; repair one that no broker has open.",
    help_epilogue="",
)
Folder = Annotated[Path, Parameter(help="The store folder: the one with commitlog in it.")]
CommitLog = Annotated[Path | None, Parameter(help="The commit log's folder, if it is elsewhere.")]
Json = Annotated[bool, Parameter(negative=(), show_default=False, help="The same as -o json.")]

FILE_COLUMNS: Final = (
    Column("path", "file"),
    Column("size", "bytes", number=True),
    Column("entries", "entries", number=True),
    Column("begin", "from", number=True),
    Column("end", "to", number=True),
    Column("first_stored", "first stored"),
)


@app.command
def verify(
    folder: Folder,
    /,
    *,
    commit_log: CommitLog = None,
    property_crc: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Demand RocketMQ's own record checksum (enabledAppendPropCRC).",
        ),
    ] = False,
    resume: Annotated[
        Path | None,
        Parameter(
            help="A file outside the store: an interrupted run leaves there where it was, and the same command"
            " goes on from it."
        ),
    ] = None,
    json: Json = False,
    output: Output = "table",
) -> int:
    """Check every record of a store, its queues and its index against its log, checkpoint and tables.

    Exit code 0: sound; 1: damaged, with what and where; 2: it cannot be read.
    """
    store = inspect(folder, commit_log, property_crc=property_crc)
    kept = resume_of(resume, folder) if resume is not None else None
    total = sum(file.size for file in store.log_files)
    with progress(f"verifying {folder}", total, in_bytes=True) as advance:
        found = look_at(store, advance, kept)
    verdict = found.verdict()
    if json or output == "json":
        print_json(verdict)
    else:
        _print_verdict(verdict)
    return FAULT if found.findings else OK


def _print_verdict(verdict: "Verdict") -> None:
    sys.stdout.write(
        f"{verdict.path}: {verdict.state}\n"
        f"log        {verdict.records} records in {verdict.log_files} files, {verdict.log_begin} to"
        f" {verdict.log_end}\n"
        f"queues     {verdict.queue_entries} entries in {verdict.queues} queues\n"
        f"index      {verdict.index_entries} entries in {verdict.index_files} files\n"
    )
    for finding in verdict.findings:
        topic = f" [topic {printable(finding.topic)}]" if finding.topic else ""
        sys.stdout.write(f"DAMAGED    {finding}{topic}\n           {finding.advice}\n")
    for note in verdict.notes:
        sys.stdout.write(f"note       {printable(note)}\n")
    sys.stdout.write("sound\n" if verdict.sound else f"{len(verdict.findings)} findings\n")


@app.command
def repair(
    folder: Folder,
    /,
    *,
    dry_run: Annotated[
        bool, Parameter(negative=(), show_default=False, help="Look and tell what would be done.")
    ] = False,
    accept_loss: Annotated[
        bool,
        Parameter(
            negative=(),
            show_default=False,
            help="Go on without bytes that were on disk and are missing at the end of the log.",
        ),
    ] = False,
    commit_log: CommitLog = None,
    config: SettingsFile = None,
    settings: Settings = (),
    json: Json = False,
    output: Output = "table",
) -> int:
    """Build queues and index again from the log, put damaged records aside, cut a torn end.

    The log decides: queue entries that agree with it stay, the index is built anew. No broker may have the store. A run
    that is interrupted is gone on with by the next one, and by the next start of a broker. File sizes are those of
    the files; other settings that matter (message delay levels, index sizes) come from the broker's file.

    Exit code 0: whole; 1: damaged records or missing ones were met, or you have to decide; 2: it cannot be opened.
    """
    from aerobee_console.offline.store_repair import plan, settings_of

    store = inspect(folder, commit_log)
    if store.owner_pid is not None:  # before anything that depends on settings, which only its broker knows
        raise Failure(f"{folder} is in use by process {store.owner_pid}: stop that first", USAGE)
    chosen = settings_of(store, config, parse_settings(settings))
    total = sum(file.size for file in store.log_files)
    if dry_run:
        with progress(f"reading {folder}", total, in_bytes=True) as advance:
            found = look_at(store, advance)
        _print_list(plan(found), "would", as_json=json or output == "json")
        return FAULT if found.findings else OK
    configure_logs(sys.stderr)
    with progress(f"repairing {folder}", 2 * total, in_bytes=True) as advance:
        report = rebuild(chosen, lambda _, size: advance(size), accept_loss=accept_loss)
    _print_list(_done(report), "did", as_json=json or output == "json")
    return FAULT if report.damage or report.lost else OK


def _done(report: "RecoveryReport") -> list[str]:
    """What a repair found and did, a sentence each."""
    counts = (
        (report.walked_records, "read {} records"),
        (report.dispatched_records, "wrote {} queue entries"),
        (report.cut_entries, "took out {} queue entries that lead to no record"),
        (report.hole_entries, "kept the numbers of {} records that cannot be read"),
        (report.indexed_keys, "indexed {} keys"),
    )
    steps = [text.format(count) for count, text in counts if count]
    steps += [
        f"put aside, into quarantine/: {one.path} at {one.begin}: {one.reason}" for one in report.damage
    ]
    steps += [
        f"dropped {count} entries of {topic}/{queue_id} from {offset} on: no record is behind them"
        for topic, queue_id, offset, count in report.dropped
    ]
    return steps + [f"went on without what is missing: {text}" for text in report.lost]


def _print_list(steps: list[str], what: str, *, as_json: bool) -> None:
    if as_json:
        print_json({what: steps})
    else:
        sys.stdout.write("".join(f"{printable(step)}\n" for step in steps))


@app.command
def dump(
    folder: Folder,
    /,
    *,
    topic: Annotated[str | None, Parameter(help="Only records of this topic.")] = None,
    queue: Annotated[int | None, Parameter(validator=QUEUE_ID, help="Only records of this queue id.")] = None,
    start: Annotated[
        int,
        Parameter(
            name="--from",
            validator=OFFSET,
            help="First physical offset; with --topic and --queue, first queue offset.",
        ),
    ] = 0,
    count: Annotated[int | None, Parameter(validator=COUNT, help="At most so many records.")] = None,
    records: Annotated[
        bool, Parameter(negative="--no-records", help="The records too, not the files alone.")
    ] = True,
    commit_log: CommitLog = None,
    json: Json = False,
    output: Output = "table",
) -> int:
    """Print the files of a store and its records, oldest first.

    JSON is an object a line: `kind` is file, record, damage or end.
    Exit code 0: what was read is sound; 1: damage was met; 2: it cannot be read.
    """
    if queue is not None and topic is None:
        raise Failure("--queue needs --topic", USAGE)
    store = inspect(folder, commit_log)
    chosen = _Chosen(topic, queue, start, count)
    if json or output == "json":
        _dump_json(store, chosen, records=records)
    else:
        _dump_text(store, chosen, records=records)
    if not store.findings and topic is not None:
        _check_chosen(store, chosen, topic, queue)
    return FAULT if store.findings else OK


def _check_chosen(store: Inspection, chosen: "_Chosen", topic: str, queue: int | None) -> None:
    """Failure when the store knows nothing of what was asked for; an empty queue is there."""
    if chosen.given:
        return
    both = (*store.queues(), *store.queues(batches=True))
    queues = {(queue.topic, queue.queue_id) for queue, _ in both}
    topics = sorted({name for name, _ in queues})
    if topic not in topics:
        near = get_close_matches(topic, topics)
        similar = f"\n  similar: {', '.join(near)}" if near else ""
        raise Failure(f"{store.root} has no topic {topic!r}{similar}", NOT_FOUND)
    if queue is not None and (topic, queue) not in queues:
        there = ", ".join(str(number) for name, number in sorted(queues) if name == topic)
        raise Failure(f"topic {topic!r} has no queue {queue} in {store.root}; there are {there}", NOT_FOUND)


class _Chosen:
    """Which records are wanted."""

    def __init__(self, topic: str | None, queue: int | None, start: int, count: int | None) -> None:
        self._topic = topic
        self._queue = queue
        self._start = start
        self._left = count
        self.given = 0  # records so far

    def of(self, store: Inspection) -> Iterator[ScannedRecord]:
        """The wanted records; the walk ends when `count` have been given."""
        for record in store.walk(lambda _: None):
            if self._left is not None and self._left <= 0:
                return
            if self._is_selected(record):
                self.given += 1
                yield record
                if self._left is not None:
                    self._left -= 1

    def _is_selected(self, record: ScannedRecord) -> bool:
        if self._topic is not None and record.topic != self._topic:
            return False
        if self._queue is None:
            return record.physical_offset >= self._start
        return record.queue_id == self._queue and record.queue_offset >= self._start


def _dump_json(store: Inspection, chosen: _Chosen, *, records: bool) -> None:
    for facts in summaries(store):
        sys.stdout.write(json_line({"kind": "file", **as_json(facts)}))
    printed_count = _print_damage_json(store, 0)
    if records:
        for record in chosen.of(store):
            printed_count = _print_damage_json(store, printed_count)
            found = store.record_at(record.physical_offset)
            if found is not None:
                sys.stdout.write(json_line({"kind": "record", **as_json(record_facts(found, found.body))}))
    _print_damage_json(store, printed_count)
    end = store.log_end.offset if store.log_end is not None else None
    last = {"kind": "end", "state": store.state, "log_begin": store.log_begin, "log_end": end}
    sys.stdout.write(json_line(last))


def _print_damage_json(store: Inspection, printed_count: int) -> int:
    """Damage that was met since `printed_count` findings; returns how many there are now."""
    for finding in store.findings[printed_count:]:
        sys.stdout.write(json_line({"kind": "damage", **as_json(finding)}))
    return len(store.findings)


@dataclass(slots=True, frozen=True)
class _FileRow:
    """A file, as people see it."""

    path: str
    size: int
    entries: int | None
    begin: int | None
    end: int | None
    first_stored: str | None


def _dump_text(store: Inspection, chosen: _Chosen, *, records: bool) -> None:
    sys.stdout.write(f"{store.root}: {store.state}\n\n")
    rows = [
        _FileRow(one.path, one.size, one.entries, one.begin, one.end, time_text(one.first_stored_ms))
        for one in summaries(store)
    ]
    print_table("", FILE_COLUMNS, rows)
    printed_count = _print_damage(store, 0)
    if records:
        sys.stdout.write("\n")
        for record in chosen.of(store):
            printed_count = _print_damage(store, printed_count)
            sys.stdout.write(_text_line(store, record))
    _print_damage(store, printed_count)


def _print_damage(store: Inspection, printed_count: int) -> int:
    for finding in store.findings[printed_count:]:
        sys.stdout.write(f"DAMAGED  {finding}\n")
    return len(store.findings)


def _text_line(store: Inspection, record: ScannedRecord) -> str:
    found = store.record_at(record.physical_offset)
    place = f"{record.physical_offset}  {printable(record.topic)}/{record.queue_id}@{record.queue_offset}"
    if found is None:
        return f"{place}\n"
    words = [place, time_text(record.store_timestamp) or ""]
    words += [f"[{printable(found.tags)}]"] if found.tags else []
    words += [f"({printable(' '.join(found.keys))})"] if found.keys else []
    return "  ".join([*words, preview(found.body)]) + "\n"
