"""`aerobee store ...`: look into a store folder, whoever wrote it and whether or not it is in use; mend it.

Touches  the folder, reading (`repair` alone changes it); standard output. Exit codes: 0 sound, 1 damaged, 2 unreadable.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import App, Parameter

from aerobee_console.daemons import Settings, SettingsFile, configure_logs, parse_settings
from aerobee_console.failures import FAULT, NOT_FOUND, OK, USAGE, Failure
from aerobee_console.messages import preview, record_facts, time_text
from aerobee_console.numbers import COUNT, OFFSET, QUEUE_ID
from aerobee_console.progress import progress
from aerobee_console.session import Output
from aerobee_console.store import Finding, ScannedRecord, StoreFolder, rebuild
from aerobee_console.store_files import summaries
from aerobee_console.tables import Column, print_json, print_table, printable

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
    Column("first", "first stored"),
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
    """Check every record of a store, its queues against its log, index headers, checkpoint and tables.

    Exit code 0: sound; 1: damaged, with what and where; 2: it cannot be read.
    """
    from aerobee_console.store_resume import Resume
    from aerobee_console.store_verify import verify as look_at

    store = StoreFolder(folder, commit_log, property_crc=property_crc)
    kept = Resume(resume, folder) if resume is not None else None
    total = sum(file.size for file in store.log_files)
    with progress(f"verifying {folder}", total, in_bytes=True) as advance:
        found = look_at(store, advance, kept)
    facts = found.facts() | {"findings": [asdict(finding) for finding in found.findings]}
    facts["notes"] = found.notes
    if json or output == "json":
        print_json(facts)
    else:
        _print_verdict(facts, found.findings)
    return FAULT if found.findings else OK


def _print_verdict(facts: dict[str, Any], findings: list[Finding]) -> None:
    sys.stdout.write(
        f"{facts['path']}: {facts['state']}\n"
        f"log        {facts['records']} records in {facts['log_files']} files, {facts['log_begin']} to"
        f" {facts['log_end']}\n"
        f"queues     {facts['queue_entries']} entries in {facts['queues']} queues\n"
        f"index      {facts['index_files']} files\n"
    )
    for finding in findings:
        topic = f" [topic {printable(finding.topic)}]" if finding.topic else ""
        sys.stdout.write(f"DAMAGED    {finding}{topic}\n           {finding.advice}\n")
    for note in facts["notes"]:
        sys.stdout.write(f"note       {printable(note)}\n")
    sys.stdout.write(f"{len(findings)} findings\n" if findings else "sound\n")


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
    from aerobee_console.store_repair import plan, settings_of
    from aerobee_console.store_verify import verify as look_at

    store = StoreFolder(folder, commit_log)
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
    return FAULT if report["damage"] or report["lost"] else OK


def _done(report: dict[str, Any]) -> list[str]:
    """What a repair found and did, a sentence each."""
    counts = (
        ("walked_records", "read {} records"),
        ("dispatched_records", "wrote {} queue entries"),
        ("cut_entries", "took out {} queue entries that lead to no record"),
        ("hole_entries", "kept the numbers of {} records that cannot be read"),
        ("indexed_keys", "indexed {} keys"),
    )
    steps = [text.format(report[name]) for name, text in counts if report[name]]
    steps += [
        f"put aside, into quarantine/: {one['path']} at {one['begin']}: {one['reason']}"
        for one in report["damage"]
    ]
    steps += [
        f"dropped {count} entries of {topic}/{queue_id} from {offset} on: no record is behind them"
        for topic, queue_id, offset, count in report["dropped"]
    ]
    return steps + [f"went on without what is missing: {text}" for text in report["lost"]]


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
            help="First physical offset; with --topic and --queue, first logical one.",
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
    store = StoreFolder(folder, commit_log)
    chosen = _Chosen(topic, queue, start, count)
    if json or output == "json":
        _dump_json(store, chosen, records=records)
    else:
        _dump_text(store, chosen, records=records)
    if not store.findings and topic is not None:
        _check_chosen(store, chosen, topic, queue)
    return FAULT if store.findings else OK


def _check_chosen(store: StoreFolder, chosen: "_Chosen", topic: str, queue: int | None) -> None:
    """Failure when the store knows nothing of what was asked for; an empty queue is there."""
    if chosen.given:
        return
    both = (*store.queues(), *store.queues(batches=True))
    queues = {(name, number) for name, number, _, _ in both}
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

    def of(self, store: StoreFolder) -> Iterator[ScannedRecord]:
        """The wanted records; the walk ends when `count` have been given."""
        for record in store.walk(lambda _: None):
            if self._left is not None and self._left <= 0:
                return
            if self._is_wanted(record):
                self.given += 1
                yield record
                if self._left is not None:
                    self._left -= 1

    def _is_wanted(self, record: ScannedRecord) -> bool:
        if self._topic is not None and record.topic != self._topic:
            return False
        if self._queue is None:
            return record.physical_offset >= self._start
        return record.queue_id == self._queue and record.queue_offset >= self._start


def _dump_json(store: StoreFolder, chosen: _Chosen, *, records: bool) -> None:
    for facts in summaries(store):
        _json_line({"kind": "file", **facts})
    told = _tell_damage(store, 0)
    if records:
        for record in chosen.of(store):
            told = _tell_damage(store, told)
            found = store.record_at(record.physical_offset)
            if found is not None:
                _json_line({"kind": "record", **record_facts(found, found.body)})
    _tell_damage(store, told)
    end = store.log_end.offset if store.log_end is not None else None
    _json_line({"kind": "end", "state": store.state, "log_begin": store.log_begin, "log_end": end})


def _tell_damage(store: StoreFolder, told: int) -> int:
    """Damage that was met since `told` findings; returns how many there are now."""
    for finding in store.findings[told:]:
        _json_line({"kind": "damage", **asdict(finding)})
    return len(store.findings)


def _json_line(facts: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(facts, ensure_ascii=False, separators=(",", ":")) + "\n")


def _dump_text(store: StoreFolder, chosen: _Chosen, *, records: bool) -> None:
    sys.stdout.write(f"{store.root}: {store.state}\n\n")
    rows = [facts | {"first": time_text(facts["first_stored_ms"])} for facts in summaries(store)]
    print_table("", FILE_COLUMNS, rows)
    told = _print_damage(store, 0)
    if records:
        sys.stdout.write("\n")
        for record in chosen.of(store):
            told = _print_damage(store, told)
            sys.stdout.write(_text_line(store, record))
    _print_damage(store, told)


def _print_damage(store: StoreFolder, told: int) -> int:
    for finding in store.findings[told:]:
        sys.stdout.write(f"DAMAGED  {finding}\n")
    return len(store.findings)


def _text_line(store: StoreFolder, record: ScannedRecord) -> str:
    found = store.record_at(record.physical_offset)
    place = f"{record.physical_offset}  {printable(record.topic)}/{record.queue_id}@{record.queue_offset}"
    if found is None:
        return f"{place}\n"
    words = [place, time_text(record.store_timestamp) or ""]
    words += [f"[{printable(found.tags)}]"] if found.tags else []
    words += [f"({printable(' '.join(found.keys))})"] if found.keys else []
    return "  ".join([*words, preview(found.body)]) + "\n"
