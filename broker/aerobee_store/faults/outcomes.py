"""What becomes of the broker when a system call about a file of the store fails: the table.

Touches  nothing. It is what `docs/operations.md` prints and what a test makes happen, row by row.

One rule for each row, whether it is the first call, the n-th or every one that fails. A call of store, settings or
timer that is in no row, nor in PASSED_OVER, fails a test.
"""

import errno
from enum import Enum
from typing import Final, NamedTuple

__all__ = ["OUTCOMES", "PASSED_OVER", "Failing", "Outcome", "Phase"]

_DISK: Final = (errno.EIO, errno.EROFS)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
_WANT: Final = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)


class Outcome(Enum):
    """What follows; the text is for the table."""

    FINAL = "final: sends are refused, exit code 74, `abort` stays"
    REFUSED = "sends are refused until it works again; what is open can be read"
    RETRIED = "told, and tried again; nothing is refused"
    NOT_STARTED = "the start is refused with exit code 74; the next one finds everything as it was"
    REQUEST_REFUSED = "the request is refused with the reason; nothing else is"
    OTHERWISE = "done in another way"


class Phase(Enum):
    """When the calls are made."""

    STARTING = "a start"
    STARTING_ANEW = "the start after a crash"
    SERVING = "messages come"
    READING = "a consumer reads"
    CLEANING = "old files are deleted"
    DELETING = "a topic is deleted"
    CONFIGURING = "an admin changes a setting"
    STOPPING = "an orderly stop"


class Failing(NamedTuple):
    """Calls about these files, with these errors, end so, with this event ("": with none)."""

    name: str
    calls: tuple[str, ...]  # as `os` names them, or `fcntl` or `mmap`; "open" is also that of Python itself
    files: str
    # Expressions that find the paths of such files, which begin with / at the store's folder.
    parts: tuple[str, ...]
    errors: tuple[int, ...]
    outcome: Outcome
    event: str
    phase: Phase = Phase.SERVING


OUTCOMES: Final = (
    Failing(
        "sync of the log",
        ("fdatasync",),
        "log",
        ("^/commitlog/",),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "sync of queues and index",
        ("fdatasync",),
        "queues, index, `checkpoint`",
        ("^/consumequeue/", "^/index/", "^/checkpoint"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "sync of the timer's files",
        ("fdatasync",),
        "`timerlog`, `timerwheel`",
        ("^/timerlog/", "^/timerwheel"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "sync of a new file and of its folder",
        ("fsync",),
        "log, queues, index, timer",
        ("^/commitlog", "^/consumequeue", "^/index", "^/timerlog"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "a write",
        ("pwrite",),
        "log, queues, index, timer, `checkpoint`",
        ("^/commitlog/", "^/consumequeue/", "^/index/", "^/timerlog/", "^/timerwheel$", "^/checkpoint$"),
        (errno.EIO,),
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "making a file",
        ("open", "posix_fallocate", "ftruncate", "fstatvfs", "mkdir"),
        "log, queues, index, timer",
        ("^/commitlog", "^/consumequeue", "^/index", "^/timerlog"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "making a file: no room",
        ("posix_fallocate", "ftruncate", "mkdir"),
        "log, queues",
        ("^/commitlog/", "^/consumequeue/"),
        _FULL,
        Outcome.REFUSED,
        "store.disk_full_met",
    ),
    Failing(
        "making a file: no descriptor, map or memory",
        ("open",),
        "log, queues",
        ("^/commitlog/", "^/consumequeue/"),
        _WANT,
        Outcome.REFUSED,
        "store.resources_used_up",
    ),
    Failing(
        "writing a table",
        ("open", "fsync", "rename", "stat", "fchmod"),
        "`config/*.json`",
        ("^/config$", "^/config/(?!timercheck|deletedTopics|queueEnds)"),
        (*_DISK, *_FULL, errno.EMFILE),
        Outcome.RETRIED,
        "broker.config_not_saved",
    ),
    Failing(
        "writing the timer's checkpoint",
        ("open", "fsync", "rename", "stat", "fchmod"),
        "`config/timercheck`",
        ("^/config/timercheck",),
        (*_DISK, *_FULL, errno.EMFILE),
        Outcome.RETRIED,
        "broker.timer_checkpoint_waits",
    ),
    Failing(
        "looking whether a file is still there",
        ("stat",),
        "log, queues, index, `checkpoint`, timer, `lock`",
        (
            "^/commitlog/",
            r"^/consumequeue/[^/]+/\d+/",
            "^/index/",
            "^/checkpoint$",
            "^/timerlog/",
            "^/timerwheel$",
            "^/lock$",
        ),
        (*_DISK, errno.EACCES, errno.ENOMEM),
        Outcome.RETRIED,
        "store.files_not_looked_at",
    ),
    Failing(
        "making a file: no map or memory",
        ("mmap",),
        "log",
        ("^/commitlog/",),
        (errno.ENOMEM,),
        Outcome.REFUSED,
        "store.resources_used_up",
    ),
    Failing(
        "mapping a file",
        ("mmap",),
        "log, index, timer, `checkpoint`",
        ("^/commitlog/", "^/index/", "^/timerlog/", "^/timerwheel$", "^/checkpoint$"),
        (errno.ENODEV, errno.EPERM),
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "asking about an open file",
        ("fstat",),
        "log, queues, index, timer, `checkpoint`",
        ("^/commitlog/", "^/consumequeue/", "^/index/", "^/timerlog/", "^/timerwheel$", "^/checkpoint$"),
        (errno.EIO,),
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "mapping a queue's file: it is written to by calls",
        ("mmap",),
        "queues",
        ("^/consumequeue/",),
        (errno.ENOMEM,),
        Outcome.OTHERWISE,
        "",
    ),
    Failing(
        "naming an index file that was made ahead",
        ("rename",),
        "index",
        ("^/index/",),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "making an index file: no room, descriptor, map or memory",
        ("open", "posix_fallocate", "rename", "mmap"),
        "index",
        ("^/index/",),
        (errno.ENOMEM, errno.ENOSPC),
        Outcome.RETRIED,
        "store.index_behind",
    ),
    Failing(
        "looking at a folder before a file is made in it, or it is synced",
        ("stat",),
        "log, queues, index, timer",
        (r"^/(commitlog|consumequeue|index|timerlog)$", r"^/consumequeue/[^/]+(/\d+)?$"),
        (*_DISK, errno.EACCES),
        Outcome.FINAL,
        "store.disk_failed",
    ),
    Failing(
        "reading entries for a consumer",
        ("pread",),
        "queues",
        ("^/consumequeue/",),
        (errno.EIO,),
        Outcome.REQUEST_REFUSED,
        "remoting.file_unreadable",
        Phase.READING,
    ),
    Failing(
        "looking how full the disk is",
        ("statvfs",),
        "the store's folder",
        ("^/$",),
        (*_DISK, errno.EACCES, errno.ENOMEM),
        Outcome.RETRIED,
        "store.disk_use_unknown",
        Phase.CLEANING,
    ),
    Failing(
        "deleting old files",
        ("unlink",),
        "log, queues, index",
        ("^/commitlog/", "^/consumequeue/", "^/index/"),
        (*_DISK, errno.EPERM),
        Outcome.RETRIED,
        "store.cleaning_failed",
        Phase.CLEANING,
    ),
    Failing(
        "closing an old file before it is deleted",
        ("close",),
        "log, queues",
        (r"^/(commitlog|consumequeue/[^/]+/\d+)/\d{20}$",),
        (errno.EIO,),
        Outcome.RETRIED,
        "store.cleaning_failed",
        Phase.CLEANING,
    ),
    Failing(
        "looking for the reserve",
        ("scandir",),
        "the store's folder",
        ("^/$",),
        (*_DISK, errno.EMFILE),
        Outcome.RETRIED,
        "store.cleaning_failed",
        Phase.CLEANING,
    ),
    Failing(
        "sync of a folder in which old files were deleted",
        ("fsync",),
        "log, queues",
        ("^/commitlog$", "^/consumequeue/"),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
        Phase.CLEANING,
    ),
    Failing(
        "deleting a topic",
        ("unlink",),
        "queues",
        ("^/consumequeue/",),
        (*_DISK, errno.EPERM),
        Outcome.FINAL,
        "store.disk_failed",
        Phase.DELETING,
    ),
    Failing(
        "removing a folder: one that is left is used again",
        ("rmdir",),
        "queues",
        ("^/consumequeue/",),
        (*_DISK, errno.EPERM),
        Outcome.OTHERWISE,
        "",
        Phase.DELETING,
    ),
    Failing(
        "noting that a topic is deleted",
        ("open", "fsync", "rename", "stat", "fchmod"),
        "`config/deletedTopics.json`",
        ("^/config/deletedTopics",),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
        Phase.DELETING,
    ),
    Failing(
        "writing the settings file",
        ("open", "fsync", "replace", "stat", "fchmod"),
        "the one that the broker was started with",
        (r"/broker\.conf",),
        (*_DISK, *_FULL, errno.EMFILE),
        Outcome.REQUEST_REFUSED,
        "",
        Phase.CONFIGURING,
    ),
    Failing(
        "taking the lock at a start",
        ("flock", "lockf"),
        "the store's folder, `lock`",
        ("",),
        (errno.EIO,),
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING,
    ),
    Failing(
        "making the lock",
        ("open", "pwrite", "fsync", "fstat", "stat"),
        "`lock`",
        ("^/lock$",),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING,
    ),
    Failing(
        "looking at the store's folder",
        ("stat", "open"),
        "the store's folder",
        ("^/$",),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING,
    ),
    Failing(
        "looking for folders that may not be there, after a crash",
        ("stat",),
        "queues of batches, what was put aside",
        ("^/batchconsumequeue$", "^/quarantine$"),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING_ANEW,
    ),
    Failing(
        "looking for what a crash may have left undone",
        ("scandir",),
        "tables, what was put aside",
        ("^/config$", "^/quarantine$"),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING_ANEW,
    ),
    Failing(
        "making a mark that a broker runs",
        ("open", "fsync", "rename", "stat"),
        "`abort`",
        ("^/abort",),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING,
    ),
    Failing(
        "saying whose the store is now, after another program's crash",
        ("fchmod",),
        "`abort`",
        ("^/abort",),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING_ANEW,
    ),
    Failing(
        "reading what is there at a start: folders",
        ("scandir",),
        "log, queues, index, timer",
        (
            "^/commitlog$",
            "^/consumequeue$",
            "^/consumequeue/.*",
            "^/index$",
            "^/timerlog$",
            "^/batchconsumequeue$",
        ),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING,
    ),
    Failing(
        "reading what is there at a start: files",
        ("open",),
        "log, index, timer, `checkpoint`, `config/*.json`",
        (
            "^/commitlog/",
            "^/index/",
            "^/timerlog/",
            "^/timerwheel$",
            "^/checkpoint$",
            "^/abort$",
            "^/rebuild$",
            "^/cut$",
            r"^/config/topics\.json$",
        ),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING,
    ),
    Failing(
        "reading the name of the store, for its slaves: the next start tries again",
        ("open", "stat"),
        "`storeIdentity`",
        ("^/storeIdentity",),
        _DISK,
        Outcome.RETRIED,
        "replication.store_unnamed",
        Phase.STARTING,
    ),
    Failing(
        "sync of names that a crash may have left undone",
        ("fsync",),
        "folders of log, queues, index, timer, tables",
        ("^/$", "^/commitlog$", "^/consumequeue$", "^/index$", "^/timerlog$", "^/config$"),
        _DISK,
        Outcome.NOT_STARTED,
        "broker.start_failed",
        Phase.STARTING_ANEW,
    ),
    Failing(
        "removing the mark that a broker runs",
        ("unlink",),
        "`abort`",
        ("^/abort$",),
        (*_DISK, errno.EPERM),
        Outcome.FINAL,
        "store.disk_failed",
        Phase.STOPPING,
    ),
    Failing(
        "sync of the folder after that",
        ("fsync",),
        "the store's folder",
        ("^/$",),
        _DISK,
        Outcome.FINAL,
        "store.disk_failed",
        Phase.STOPPING,
    ),
    Failing(
        "listing the queues at a stop: the next start asks the log",
        ("open", "fsync", "rename", "stat", "fchmod"),
        "`config/queueEnds.json`",
        ("^/config/queueEnds",),
        (*_DISK, *_FULL),
        Outcome.RETRIED,
        "store.queue_list_not_saved",
        Phase.STOPPING,
    ),
)

# Calls whose failing has no outcome of its own, or one that depends on nothing but the call that follows; and why.
PASSED_OVER: Final = {
    "close": "what has to be on the disk was synced before; of a file that was not it is as final as that sync",
    "fchown": "the owner of a file that is replaced is kept where the system allows it; others never get more rights",
    "lseek": "where the holes of a file are is not known then: all of it is read",
    "posix_fadvise": "reading ahead is advice: what does not come so is read when it is asked for",
    "pread": "at a start and for the broker's own work as for the tables: told, and exit code 74",
    "rmdir": "a folder that is left is used again",
}
