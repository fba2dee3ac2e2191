"""What becomes of the broker when a system call about a file of the store fails: the table.

Touches  nothing. It is what `docs/operations.md` prints and what a test makes happen, row by row.

One rule for each row, whether it is the first call, the n-th or every one that fails.
"""

import errno
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["OUTCOMES", "Failing", "Outcome"]

_DISK: Final = (errno.EIO, errno.EROFS)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_WANT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Outcome(Enum):
    """What follows; the text is for the table."""

    FINAL = "final: sends are refused, exit code 74, `abort` stays"
    REFUSED = "sends are refused until it works again; reads go on"
    RETRIED = "told, and tried again; nothing is refused"
    NOT_STARTED = "the start is refused with exit code 74; the next one finds everything as it was"


class Failing(NamedTuple):
    """Calls about these files, with these errors, end so, with this event."""

    name: str
    calls: tuple[str, ...]  # as `os` names them, or `fcntl`
    files: str
    parts: tuple[str, ...]  # of the paths of such files, below the store's folder; any of them
    errors: tuple[int, ...]
    outcome: Outcome
    event: str


OUTCOMES: Final = (
    Failing(
        "sync of the log",
        ("fdatasync",),
        "log",
        ("/commitlog/",),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "sync of queues and index",
        ("fdatasync",),
        "queues, index, `checkpoint`",
        ("/consumequeue/", "/index/", "/checkpoint"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "sync of the timer's files",
        ("fdatasync",),
        "`timerlog`, `timerwheel`",
        ("/timerlog/", "/timerwheel"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "sync of a new file and of its folder",
        ("fsync",),
        "log",
        ("/commitlog",),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "a write",
        ("pwrite",),
        "log, queues, index",
        ("/commitlog/", "/consumequeue/", "/index/"),
        (errno.EIO,),
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "making a file",
        ("open", "posix_fallocate", "ftruncate", "fstatvfs", "mkdir"),
        "log, queues, index, timer",
        ("/commitlog/", "/consumequeue/", "/index/", "/timerlog/"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "making a file: no room",
        ("posix_fallocate", "ftruncate", "mkdir"),
        "log, queues",
        ("/commitlog/", "/consumequeue/"),
        _FULL,
        Outcome.REFUSED,
        "store.disk_full_met",
    ),
    Failing(
        "making a file: no descriptor, map or memory",
        ("open",),
        "log, queues",
        ("/commitlog/", "/consumequeue/"),
        _WANT,
        Outcome.REFUSED,
        "store.resources_used_up",
    ),
    Failing(
        "writing a table",
        ("open", "fsync", "rename"),
        "`config/*.json`",
        ("/config/topics.json",),
        (*_DISK, *_FULL, errno.EMFILE),
        Outcome.RETRIED,
        "broker.config_not_saved",
    ),
    Failing(
        "writing the timer's checkpoint",
        ("open", "fsync", "rename"),
        "`config/timercheck`",
        ("/config/timercheck",),
        (*_DISK, *_FULL, errno.EMFILE),
        Outcome.RETRIED,
        "broker.timer_checkpoint_waits",
    ),
    Failing(
        "looking whether a file is still there",
        ("stat",),
        "log, queues, index, `checkpoint`, timer",
        ("/commitlog/", "/checkpoint"),
        (*_DISK, errno.EACCES, errno.ENOMEM),
        Outcome.RETRIED,
        "store.files_not_looked_at",
    ),
    Failing(
        "taking the lock at a start",
        ("flock", "lockf"),
        "the store's folder, `lock`",
        ("",),
        (errno.EIO,),
        Outcome.NOT_STARTED,
        "broker.start_failed",
    ),
    Failing(
        "reading what is there at a start",
        ("scandir", "open"),
        "log, queues, index, `config/*.json`",
        ("/commitlog", "/consumequeue", "/index", "/config/topics.json"),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
    ),
)
