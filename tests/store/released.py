"""Files that left their row, deleted as the cleaner deletes them."""

from collections.abc import Sequence

from aerobee_store.disk.io import StoreIo
from aerobee_store.disk.mapped_files import MappedFile
from aerobee_store.index.index_file import IndexFile


def delete(released: Sequence[MappedFile | IndexFile], io: StoreIo) -> int:
    """Close and delete them; how many."""
    for file in released:
        data = file.data if isinstance(file, MappedFile) else file
        data.close()
        io.unlink(data.path)
        io.sync_folder(data.path.parent)
    return len(released)
