"""How a log can be cut back when its store is opened.

Touches  nothing.
"""

from typing import Final

__all__ = ["START_OVER"]

# Instead of a physical offset: nothing of the log stays, and it may begin anywhere, as one that was never written.
START_OVER: Final = -1
