"""The interpreter of a server: when it looks for garbage, and how soon another thread has its turn.

Touches  the process: Python's garbage collector and its switch interval.
"""

import gc
import sys
from typing import Final

__all__ = ["COLLECT_AFTER", "SWITCH_INTERVAL_S", "set_up_interpreter"]

# Objects, and collections of the younger generation. What passes through or is kept, messages and topics above all, is
# not in cycles: collecting earlier costs 4 % of a broker's send rate and finds nothing. More than this at a time costs
# no less, and a pause: 50,000 young objects took 17 ms, during which nobody is answered.
COLLECT_AFTER: Final = 10_000, 100, 100
# The event loop waits no longer than this for a thread that works, and the flusher for the event loop; not 5 ms.
SWITCH_INTERVAL_S: Final = 0.001


def set_up_interpreter() -> None:
    """Once, when the modules are loaded and before anything is served."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    gc.set_threshold(*COLLECT_AFTER)
    gc.freeze()  # what the modules brought stays
