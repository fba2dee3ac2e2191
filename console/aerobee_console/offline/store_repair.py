"""`aerobee store repair`: queues compared with the log and mended, the index built anew, torn ends cut, rot put aside.

Touches  the store folder, through the store itself, under its lock.

It is the recovery of a start that believes nothing but the log. Stopped at any moment, for any reason, it leaves what a
crash leaves: the next repair or start goes on.
"""

from pathlib import Path

from aerobee_console.folder.store import Inspection, StoreSettings, Verified, index_file_size
from aerobee_console.servers.daemons import store_settings
from aerobee_console.terminal.failures import USAGE, Failure

__all__ = ["plan", "settings_of"]


def settings_of(folder: Inspection, file: Path | None, overrides: dict[str, str]) -> StoreSettings:
    """How the store is laid out: from a broker's settings, file sizes from the files themselves where there are any.

    Raises Failure when the settings do not fit what is there.
    """
    sizes = {"storePathRootDir": str(folder.root)}
    if folder.log_folder != folder.root / "commitlog":
        sizes["storePathCommitLog"] = str(folder.log_folder)
    if folder.log_file_size:
        sizes["mappedFileSizeCommitLog"] = str(folder.log_file_size)
    queue_sizes = {size for queue, size in folder.queues() if queue.files}
    if len(queue_sizes) == 1:
        sizes["mappedFileSizeConsumeQueue"] = str(queue_sizes.pop())
    batch_sizes = {size for queue, size in folder.queues(batches=True) if queue.files}
    if len(batch_sizes) == 1:
        sizes["mapperFileSizeBatchConsumeQueue"] = str(batch_sizes.pop())
    settings = store_settings(file, sizes | overrides)
    expected = index_file_size(settings.index_slots, settings.index_entries)
    for path, size in folder.index_files():
        if path.rpartition("/")[2].isdecimal() and size != expected:
            raise Failure(
                f"{path} has {size} bytes, and {expected} by these settings: give the broker's settings"
                " file (-c), or --set maxHashSlotNum and maxIndexNum",
                USAGE,
            )
    return settings


def plan(found: Verified) -> list[str]:
    """What a repair would do, a sentence each."""
    folder, end = found.folder, found.folder.log_end
    assert end is not None
    steps = [f"read the log from {folder.log_begin} to {end.offset}: {found.record_count} records"]
    log = folder.name_of(folder.log_folder)
    damaged = [one for one in found.findings if one.path.startswith(log) and one.end is not None]
    lost = folder.known_durable - end.offset
    steps += [f"put aside, into quarantine/: {one}" for one in damaged if one.begin != end.offset]
    if end.is_torn:
        steps.append(f"cut the log at {end.offset}: what follows is no record")
    if lost > 0:
        steps.append(f"go on only with --accept-loss: the last {lost} bytes that were on disk are missing")
    steps.append(f"compare {found.queue_count} queues with the log, and write again what does not agree")
    steps.append(f"delete {found.index_file_count} index files and build the index from the log")
    return steps
