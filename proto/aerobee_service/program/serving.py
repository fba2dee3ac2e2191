"""A server as a program: its interpreter, its event loop, and the signals that end it.

Touches  the process: interpreter, event loop, signals, systemd's notification socket.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
import uvloop

from aerobee_service.logs.logs import stray_errors_logged
from aerobee_service.program.descriptor_table import widen_descriptor_table
from aerobee_service.program.interpreter import GarbageSearch, set_up_interpreter
from aerobee_service.program.stop_signals import call_on_stop_signals
from aerobee_service.program.systemd import ServiceNotifier

__all__ = ["run_server", "stop_event"]

log = structlog.get_logger()

THREADS_MAX: Final = 8
FAILED: Final = 1  # exit code


def run_server(
    serve: Callable[[ServiceNotifier], Coroutine[object, object, int]],
    *,
    executor: Callable[[], ThreadPoolExecutor] | None = None,
) -> int:
    """Run `serve` to its end in an event loop of its own; its exit code. Logs are set up already.

    What it raises is a line of the log, not a trace on standard error, whose reader may hang.
    `executor` makes the threads for work that must not hold the loop up; without it there are at most THREADS_MAX.
    """
    set_up_interpreter()
    widen_descriptor_table()
    with stray_errors_logged(), asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        threads = (
            ThreadPoolExecutor(THREADS_MAX, thread_name_prefix="worker") if executor is None else executor()
        )
        runner.get_loop().set_default_executor(threads)
        try:
            return runner.run(_looked_after(serve(ServiceNotifier.of_process())))
        except Exception:
            log.exception("process.failed")
            return FAILED


async def _looked_after(serving: Coroutine[object, object, int]) -> int:
    searching = asyncio.create_task(GarbageSearch().run(), name="garbage search")
    try:
        return await serving
    finally:
        searching.cancel()
        await asyncio.gather(searching, return_exceptions=True)


def stop_event() -> asyncio.Event:
    """An event that is set when somebody asks the server to stop."""
    stop = asyncio.Event()
    call_on_stop_signals(stop.set)
    return stop
