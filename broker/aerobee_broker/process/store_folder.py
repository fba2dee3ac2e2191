"""Whether a folder is for a store: one with files of somebody else in it, and none of a store, is named by mistake.

Touches  names in the folder, asking only.

A home folder or that of a project would get some ten files and folders among its own, and whoever deletes the store
later deletes what stood there before. A store of RocketMQ is one whatever else lies in it.
"""

from pathlib import Path
from typing import Final

__all__ = ["foreign_folder", "store_signs"]

# What only a store has. `config`, `index` and `lock` may be anybody's.
_SIGNS: Final = frozenset(
    {
        "abort",
        "batchconsumequeue",
        "checkpoint",
        "commitlog",
        "compaction",
        "consumequeue",
        "consumequeue_ext",
        "timerlog",
        "timerwheel",
    }
)
_TABLES: Final = frozenset(
    {"consumerOffset.json", "delayOffset.json", "subscriptionGroup.json", "topics.json"}
)
# Beside them nothing of anybody's; the last four are of file systems.
_NOBODYS: Final = frozenset(
    {
        "config",
        "index",
        "lock",
        "quarantine",
        "reserve",
        ".snapshot",
        ".zfs",
        "System Volume Information",
        "lost+found",
    }
)
_SHOWN_MAX: Final = 3


def store_signs(root: Path) -> bool:
    """Whether there is anything in the folder that only a store has."""
    return bool(_names(root) & _SIGNS or _names(root / "config") & _TABLES)


def foreign_folder(root: Path, expected: frozenset[str] = frozenset()) -> str | None:
    """What is wrong with a store at `root`, and what to do; None when it is one, or may become one.

    `expected`: further names that may be there.
    """
    foreign = sorted(_names(root) - _NOBODYS - expected)
    if not foreign or store_signs(root):
        return None
    more = ", ..." if len(foreign) > _SHOWN_MAX else ""
    return (
        f"{root} is not empty and is no store: it holds {', '.join(foreign[:_SHOWN_MAX])}{more}. "
        f"Name an empty folder or a new one: --set storePathRootDir='{root / 'store'}'. "
        f"If it is meant to be this one: mkdir '{root}/commitlog'"
    )


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()}
    except OSError:  # not there, or not to be read: the start says so, and why
        return set()
