"""Queues of batches, which RocketMQ has beside the plain ones: found, and not touched.

A topic whose attribute `queue.type` is `BatchCQ` has its queues in batchconsumequeue/ instead of consumequeue/: one
entry of 46 bytes a record, and a record may be a whole batch that takes as many queue offsets as it has messages. They
are not served. Plain queues that were built from the log of such a topic would count records instead of messages: the
numbers of messages that are there would be given out again, and RocketMQ would not start on the folder any more.

Touches  <root>/batchconsumequeue, for its names alone.
"""

from pathlib import Path
from typing import Final

from aerobee_store.errors import CorruptStore
from aerobee_store.io import StoreIo

__all__ = ["BATCH_QUEUE_FOLDER", "BATCH_WAY_OUT", "batch_topics", "refuse_batch_queues"]

BATCH_QUEUE_FOLDER: Final = "batchconsumequeue"
BATCH_WAY_OUT: Final = (
    "topics with queue.type=BatchCQ are not served: let RocketMQ consume and delete them, or open a store "
    "without them"
)
_SHOWN_MAX: Final = 5


def batch_topics(root: Path, io: StoreIo) -> list[str]:
    """Topics that have a file of entries of batches, sorted."""
    folder = root / BATCH_QUEUE_FOLDER
    return sorted(
        topic.name
        for topic in io.list_names(folder)
        if topic.is_dir
        and any(
            io.list_names(folder / topic.name / queue.name)
            for queue in io.list_names(folder / topic.name)
            if queue.is_dir
        )
    )


def refuse_batch_queues(root: Path, io: StoreIo) -> None:
    """CorruptStore, which says what to do, when the store has such queues."""
    topics = batch_topics(root, io)
    if topics:
        more = f" and {len(topics) - _SHOWN_MAX} others" if len(topics) > _SHOWN_MAX else ""
        shown = ", ".join(topics[:_SHOWN_MAX]) + more
        raise CorruptStore(
            root / BATCH_QUEUE_FOLDER, None, f"there are queues of batches ({shown})", BATCH_WAY_OUT
        )
