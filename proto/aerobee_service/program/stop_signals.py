"""The signals that ask a server to stop: SIGTERM, SIGINT (Ctrl-C), and SIGHUP (its terminal was closed).

Touches  the process: signal handlers of the running loop; standard streams, when a terminal that they lead to is gone.
"""

import asyncio
import os
import signal
from collections.abc import Callable

__all__ = ["call_on_stop_signals"]


def call_on_stop_signals(stop: Callable[[], object]) -> None:
    """Have the running loop call `stop` for each of these signals.

    A SIGHUP that is ignored stays so: that is what `nohup` is for.
    """
    loop = asyncio.get_running_loop()
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def hung_up() -> None:
        # Nobody reads any more, and writing is an error: the orderly stop must not end at its own log lines.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for number in terminals:
            os.dup2(nowhere, number)
        os.close(nowhere)
        stop()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        loop.add_signal_handler(signal.SIGHUP, hung_up)
