"""Which topics have queues of batches: those whose attribute `queue.type` is `BatchCQ`.

Their queues lie in batchconsumequeue/ and not in consumequeue/, see batch_queue. The store has to know which they are
before it looks at a queue, as the two kinds count differently: it reads config/topics.json, and takes a folder in
batchconsumequeue/ for the same word. That folder is made, durable, before the first message of such a topic: its
settings may come to the disk later.

Touches  <root>/config/topics.json, reading; <root>/batchconsumequeue and consumequeue, for their names.
"""

from pathlib import Path
from typing import Any, Final

from aerobee_proto import javajson
from aerobee_proto.errors import FormatError
from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.json_files import JsonFile
from aerobee_store.faults.errors import CorruptStore

__all__ = ["BATCH_KIND", "BATCH_QUEUE_FOLDER", "QUEUE_FOLDER", "QUEUE_KIND", "batch_topics"]

QUEUE_FOLDER: Final = "consumequeue"
BATCH_QUEUE_FOLDER: Final = "batchconsumequeue"
# The attribute of a topic that says which kind its queues are, and its value for this one.
QUEUE_KIND: Final = "queue.type"
BATCH_KIND: Final = "BatchCQ"
_SHOWN_MAX: Final = 5


def batch_topics(root: Path, io: StoreIo) -> frozenset[str]:
    """The topics with queues of batches. CorruptStore when settings and files say different things of one, as RocketMQ
    would refuse to start on it too."""
    kinds = _configured(root, io)
    found = {topic for topic, is_batch in kinds.items() if is_batch}
    wrong = [topic for topic in sorted(found) if _has_files(root / QUEUE_FOLDER / topic, io)]
    _refuse(root / QUEUE_FOLDER, wrong, f"{QUEUE_KIND}={BATCH_KIND}", "plain queues")
    for folder in io.list_names(root / BATCH_QUEUE_FOLDER):
        if not folder.is_dir:
            continue
        if folder.name not in kinds and _is_left_over(root, folder.name, io):
            continue
        if kinds.get(folder.name, True):
            found.add(folder.name)
        elif _has_files(root / BATCH_QUEUE_FOLDER / folder.name, io):
            wrong.append(folder.name)
    _refuse(root / BATCH_QUEUE_FOLDER, wrong, f"no {QUEUE_KIND}={BATCH_KIND}", "queues of batches")
    return frozenset(found)


def _refuse(folder: Path, topics: list[str], said: str, there_are: str) -> None:
    if topics:
        more = f" and {len(topics) - _SHOWN_MAX} others" if len(topics) > _SHOWN_MAX else ""
        raise CorruptStore(
            folder,
            None,
            f"topics.json says {said} of {', '.join(topics[:_SHOWN_MAX])}{more}, and there are {there_are}",
            "bring back the config/topics.json that belongs to the store, or correct the attribute in it",
        )


def _configured(root: Path, io: StoreIo) -> dict[str, bool]:
    """Of each topic in topics.json whether it has queues of batches; nothing when that cannot be read: whoever needs
    the settings says so."""
    try:
        return JsonFile(root / "config" / "topics.json", io, _parse).load() or {}
    except CorruptStore:
        return {}


def _parse(raw: bytes) -> dict[str, bool]:
    try:
        content = javajson.loads(raw)
    except FormatError as broken:
        raise ValueError(str(broken)) from broken
    table = content.get("topicConfigTable") if isinstance(content, dict) else None
    return {str(name): _is_batch(topic) for name, topic in table.items()} if isinstance(table, dict) else {}


def _is_batch(topic: Any) -> bool:
    attributes = topic.get("attributes") if isinstance(topic, dict) else None
    return isinstance(attributes, dict) and attributes.get(QUEUE_KIND) == BATCH_KIND


def _is_left_over(root: Path, topic: str, io: StoreIo) -> bool:
    """Whether its folder was made for a topic that became one of the other kind: a crash came between."""
    return _has_files(root / QUEUE_FOLDER / topic, io) and not _has_files(
        root / BATCH_QUEUE_FOLDER / topic, io
    )


def _has_files(folder: Path, io: StoreIo) -> bool:
    queues = [queue.name for queue in io.list_names(folder) if queue.is_dir]
    return any(not file.is_dir for queue in queues for file in io.list_names(folder / queue))
