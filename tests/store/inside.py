"""Parts of an open store that tests look into, or break: the one place that knows where it keeps them."""

from aerobee_store.index.index import IndexService
from aerobee_store.log.commit_log import CommitLog
from aerobee_store.queues.queue_table import QueueTable
from aerobee_store.queues.tombstones import Tombstones
from aerobee_store.store import MessageStore
from aerobee_store.terms.config import StoreConfig

__all__ = ["index_of", "log_of", "queues_of", "settings_of", "tombstones_of"]


def log_of(store: MessageStore) -> CommitLog:
    """The files that messages are written to."""
    return store._log


def queues_of(store: MessageStore) -> QueueTable:
    """The files of its queues."""
    return store._queues


def index_of(store: MessageStore) -> IndexService:
    """The files of its keys."""
    return store._index


def tombstones_of(store: MessageStore) -> Tombstones:
    """What it knows of deleted topics."""
    return store._tombstones


def settings_of(store: MessageStore) -> StoreConfig:
    """How it was made."""
    return store._config
