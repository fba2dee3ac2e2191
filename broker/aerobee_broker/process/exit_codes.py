"""What the exit code of a broker's process says; docs/operations.md tells what a supervisor should do.

Touches  nothing.
"""

import os
from typing import Final

__all__ = ["EXIT_DISK_FAILED", "EXIT_FAILED", "EXIT_FILE_GONE", "EXIT_USAGE"]

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
# 66: started again by itself it would go on without what is in the file.
EXIT_FILE_GONE: Final = os.EX_NOINPUT
EXIT_DISK_FAILED: Final = os.EX_IOERR  # 74: started again by itself it might trust a disk that has lost pages
