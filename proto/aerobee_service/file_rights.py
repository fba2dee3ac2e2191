"""Who may do what with a file that takes the place of another. Touches the one file that it is given."""

import os
import stat

__all__ = ["give_rights"]


def give_rights(descriptor: int, before: os.stat_result) -> None:
    """Give an open file mode, owner and group of the file before. OSError when its mode cannot be set.

    Where the group cannot be kept, the one that the file has instead gets the rights of others.
    """
    mode = stat.S_IMODE(before.st_mode)
    try:
        os.fchown(descriptor, before.st_uid, before.st_gid)
    except OSError:
        try:
            os.fchown(descriptor, -1, before.st_gid)
        except OSError:
            mode = mode & ~stat.S_IRWXG | (mode & stat.S_IRWXO) << 3
    os.fchmod(descriptor, mode)
