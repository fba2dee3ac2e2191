"""What an engine is told of the index: as it is now, and made anew only when something has changed."""

from aerobee_store.store import MessageStore
from store.inside import index_of
from store.memory_io import MemoryIo
from store.workload import message, open_store


def send(store: MessageStore, number: int) -> None:
    store.append([message(unique_key=f"U{number}")])
    store.confirm(store.end_offset)


def test_files_of_the_index_are_told_as_they_are_now() -> None:
    store = open_store(MemoryIo(), index_slots=3, index_entries=4)  # three entries a file
    store.residency.begin(lambda stretches: None)
    keys = store.keys
    assert keys.nearby() == []
    for number in range(7):
        send(store, number)
        assert keys.nearby() is None, "a key waits"
        keys.build(keys.backlog)
        told = keys.nearby()
        assert told is not None
        files = index_of(store).files[::-1]
        assert [one[:5] for one in told] == [
            (file.view, 3, file.next_entry, file.begin_timestamp, file.end_timestamp) for file in files
        ]
        assert keys.nearby() is told
    assert len(index_of(store).files) == 3


def test_what_is_in_memory_is_told_as_long_as_it_is_believed() -> None:
    store = open_store(MemoryIo(), index_slots=3, index_entries=4)
    send(store, 0)
    store.keys.build(1)
    told = store.keys.nearby()
    assert told is not None
    assert told[0][5] is None, "nobody is asked: all is"
    store.residency.begin(lambda stretches: None)
    (file,) = index_of(store).files
    for _ in range(2):
        told = store.keys.nearby()
        assert told is not None
        assert told[0][5] == {}
        assert store.keys.asks((0, 40, 4))
        assert told[0][5] == store.residency.index_pages(file) != {}
        store.residency.forget()
        # Made anew: what was told before holds the maps of files that may be deleted meanwhile.
        assert store.keys.nearby() is not told
