"""An archive: a folder of Parquet files, and the list of commits that says which of them count.

Touches  one folder, on this machine or behind an fsspec address.

    topic=orders/day=2026-01-31/<name>.parquet    messages of a topic that brokers took on a day (UTC)
    _aerobee/commits/<20 digits>.json             what one commit added: files, and the spans of queues in them
    _aerobee/staging/<run>/<name>.parquet         written by tasks, not committed, or committed and not moved yet

A commit is one file that appears whole, under a number that no other has. After it, its files are moved to their
places; whoever opens the archive for writing finishes that for the newest commit. So

- a message is in the archive when its commit is there, and every span is in one commit: exactly once;
- a reader that goes by the commits (`files`, `read_archive`) sees whole commits;
- one that reads all Parquet files below the folder never sees a message twice, and sees all of them except for the
  moment between a commit and its moves.

What killed runs leave in staging is deleted when it is a day old.
"""

import json
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import quote

import fsspec

from aerobee import MessageQueue
from pyspark_aerobee.errors import OptionError, PipelineError
from pyspark_aerobee.jobs.spans import Intervals, Span

__all__ = ["Archive", "ArchivedFile", "Commit", "Conflict"]

FORMAT: Final = 1
_META: Final = "_aerobee"
_COMMITS: Final = f"{_META}/commits"
_STAGING: Final = f"{_META}/staging"
STAGED_FOR_S: Final = 24 * 3600
_DAY_MS: Final = 86_400_000


class Conflict(PipelineError):
    """Another run has committed to the archive at the same time."""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """One Parquet file. `day` counts from 1970-01-01 UTC; `name` is the last part of its path."""

    name: str
    topic: str
    day: int
    rows: int
    size: int
    begin_ms: int  # store times of the messages in it, both included
    end_ms: int
    spans: list[list[Any]] = field(default_factory=list)  # [broker_name, queue_id, begin, end]

    @property
    def date(self) -> str:
        """The day as text."""
        return datetime.fromtimestamp(self.day * _DAY_MS / 1000, UTC).strftime("%Y-%m-%d")

    @property
    def path(self) -> str:
        """Where it lies below the archive."""
        return f"topic={quote(self.topic, safe='')}/day={self.date}/{self.name}"


@dataclass(frozen=True, slots=True)
class Commit:
    """What one commit added."""

    number: int
    run: str
    created_ms: int
    source: str
    spans: list[Span]
    files: list[ArchivedFile]
    missing: int = 0  # messages of the spans that the source did not have
    damaged: list[dict[str, Any]] = field(default_factory=list)
    lost: list[Span] = field(default_factory=list)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def encode(self) -> bytes:
        """As it is stored."""
        facts = {"format": FORMAT, **asdict(self)}
        facts["spans"] = [_span_fact(span) for span in self.spans]
        facts["lost"] = [_span_fact(span) for span in self.lost]
        return json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, content: bytes) -> "Commit":
        """From what is stored. ValueError when it is no commit."""
        facts = json.loads(content)
        if not isinstance(facts, dict) or facts.pop("format", None) != FORMAT:
            raise ValueError(f"it is not of format {FORMAT}")
        try:
            facts["files"] = [ArchivedFile(**one) for one in facts["files"]]
            facts["spans"] = [_span_of(one) for one in facts["spans"]]
            facts["lost"] = [_span_of(one) for one in facts["lost"]]
            return cls(**facts)
        except (KeyError, TypeError) as broken:
            raise ValueError(str(broken)) from broken


def _span_fact(span: Span) -> list[Any]:
    return [*span.queue, span.begin, span.end]


def _span_of(fact: Sequence[Any]) -> Span:
    topic, broker_name, queue_id, begin, end = fact
    return Span(MessageQueue(topic, broker_name, queue_id), begin, end)


class Archive:
    """One archive folder. Reading it needs nothing but the folder."""

    def __init__(self, address: str, storage: Mapping[str, Any] | None = None) -> None:
        try:
            self._fs, root = fsspec.core.url_to_fs(address, **(storage or {}))
        except (ImportError, ValueError) as refused:
            raise OptionError("archive", address, f"fsspec cannot open it: {refused}") from refused
        self.address = address.rstrip("/")
        self.storage = dict(storage or {})
        self._root = root.rstrip("/")
        self._is_local = "file" in (
            self._fs.protocol if isinstance(self._fs.protocol, tuple) else (self._fs.protocol,)
        )

    # --- reading ----------------------------------------------------------------------------------------------

    def numbers(self) -> list[int]:
        """The numbers of all commits, ascending."""
        try:
            names = self._fs.ls(f"{self._root}/{_COMMITS}", detail=False, refresh=True)
        except FileNotFoundError:
            return []
        stems = (name.rpartition("/")[2] for name in names)
        return sorted(
            int(stem.removesuffix(".json"))
            for stem in stems
            if stem.endswith(".json") and stem.removesuffix(".json").isdecimal()
        )

    def commit_at(self, number: int) -> Commit:
        """One commit. PipelineError when it is damaged."""
        path = self.commit_path(number)
        try:
            return Commit.decode(self._fs.cat_file(path))
        except ValueError as broken:
            raise PipelineError(
                f"{path} is no commit of an archive: {broken}. Without it nobody knows what the archive holds"
            ) from broken

    def commits(self) -> list[Commit]:
        """All commits, oldest first. PipelineError when one is missing."""
        numbers = self.numbers()
        if numbers != list(range(1, len(numbers) + 1)):
            missing = sorted(set(range(1, numbers[-1] + 1)) - set(numbers))
            raise PipelineError(f"{self._root}/{_COMMITS}: the commits {missing[:8]} are missing")
        return [self.commit_at(number) for number in numbers]

    def path_of(self, file: ArchivedFile) -> str:
        """Full address of a file."""
        return f"{self.address}/{file.path}"

    def files(self, topics: Sequence[str] = ()) -> list[ArchivedFile]:
        """The files that count, of these topics or all."""
        found = [file for commit in self.commits() for file in commit.files]
        return [file for file in found if not topics or file.topic in topics]

    def inside(self, path: str) -> str:
        """A path below the archive, for `filesystem`."""
        return f"{self._root}/{path}"

    def commit_path(self, number: int) -> str:
        """Where the commit of a number is kept."""
        return f"{self._root}/{_COMMITS}/{number:020d}.json"

    # --- writing ----------------------------------------------------------------------------------------------

    def open_run(self) -> tuple[str, list[Commit], Intervals]:
        """Begin to write: a name for the run, all commits, and the messages that they hold."""
        commits = self.commits()
        if commits:
            self.publish(commits[-1])
        self._delete_old_staging({commits[-1].run} if commits else set())
        run = f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{uuid.uuid4().hex[:12]}"
        self._fs.makedirs(f"{self._root}/{_COMMITS}", exist_ok=True)
        self._fs.makedirs(f"{self._root}/{_STAGING}/{run}", exist_ok=True)
        return run, commits, Intervals(span for commit in commits for span in commit.spans)

    def staged(self, run: str, name: str) -> str:
        """Where a task writes a file; a path for `filesystem`."""
        return f"{self._root}/{_STAGING}/{run}/{name}"

    @property
    def filesystem(self) -> Any:
        """fsspec's file system of the folder."""
        return self._fs

    def commit(self, commit: Commit) -> None:
        """Let a commit count. Conflict when its number is taken."""
        for file in commit.files:
            if self._fs.info(self.staged(commit.run, file.name))["size"] != file.size:
                raise PipelineError(
                    f"{self.staged(commit.run, file.name)} is not as its task left it; run the job again"
                )
        path = self.commit_path(commit.number)
        try:
            if self._is_local:
                _create_whole(path, commit.encode())
            else:
                self._fs.pipe_file(path, commit.encode(), mode="create")
        except FileExistsError:
            raise Conflict(
                f"another run has written to {self.address} meanwhile (commit {commit.number}); what this one read is "
                "not in the archive: run it again when the other one is done"
            ) from None

    def publish(self, commit: Commit) -> None:
        """Move the files of a commit to their places, those that are not there."""
        for file in commit.files:
            staged, place = self.staged(commit.run, file.name), f"{self._root}/{file.path}"
            if not self._fs.exists(staged):
                continue
            self._fs.makedirs(place.rpartition("/")[0], exist_ok=True)
            try:
                self._fs.mv(staged, place)
            except FileNotFoundError:  # somebody else who opened the archive was faster
                if not self._fs.exists(place):
                    raise

    def close_run(self, run: str) -> None:
        """The run is over: nothing of it is left in staging."""
        folder = f"{self._root}/{_STAGING}/{run}"
        if self._fs.exists(folder):
            self._fs.rm(folder, recursive=True)

    def _delete_old_staging(self, kept: set[str]) -> None:
        """Runs begin their names with the time at which they began."""
        border = f"{datetime.fromtimestamp(time.time() - STAGED_FOR_S, UTC):%Y%m%dT%H%M%S}"
        try:
            folders = self._fs.ls(f"{self._root}/{_STAGING}", detail=False, refresh=True)
        except FileNotFoundError:
            return
        for folder in folders:
            name = folder.rstrip("/").rpartition("/")[2]
            if name < border and name not in kept:
                self.close_run(name)


def _create_whole(path: str, content: bytes) -> None:
    """A file that is there whole or not at all. FileExistsError when it is there already."""
    fresh = f"{path}.{uuid.uuid4().hex}"
    with open(fresh, "xb") as file:  # noqa: PTH123  # an fsspec path
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    try:
        os.link(fresh, path)
    finally:
        os.unlink(fresh)  # noqa: PTH108
