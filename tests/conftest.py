"""Settings that hold for every test.

Hypothesis: no deadline, because a busy machine is not a fault; the long run (`./dev test --long`) tries many more
examples; CI always tries the same ones, so that a red run can be repeated.

Open files: a whole run wants some thousands of them, so what the system allows is asked for.

Disks: nothing here waits for one. No test cuts the power of the machine, and a kill leaves what was written; half of
the time of the tests of stores was syncs. What a disk gets, and in which order, is seen by disks in memory and by
strace, in programs that are started as a user does.

Signals: what this run ignores (a hang-up under `nohup`, an interrupt behind `&` in a script) would be ignored by the
programs that tests start, too, and rightly so; these have the usual handlers.

Logs: a test that runs a program in this process sets logging up for good; it is taken back, loggers that remember it
too, or no later test could look at what is logged.
"""

import logging
import os
import resource
import signal
import sys
from collections.abc import Iterator

import pytest
import structlog
from hypothesis import HealthCheck, settings

import nursery
from aerobee_service.logs.event_log import LOGGER_NAME

pytest_plugins = ["workers", "engines"]

settings.register_profile(
    "aerobee",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
    max_examples=5_000 if os.environ.get("AEROBEE_LONG") else 100,
    derandomize=bool(os.environ.get("CI")) and not os.environ.get("AEROBEE_LONG"),
)
settings.load_profile("aerobee")

nursery.sync_nothing()

OPEN_FILES = 20_000
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
if soft < min(OPEN_FILES, hard):
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(OPEN_FILES, hard), hard))


def _passed_over(_number: int, _frame: object) -> None:
    """As good as ignored, for this process alone."""


for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, _passed_over)

LOGS_AT_FIRST = structlog.get_config()
LEVEL_AT_FIRST = logging.getLogger().level
CLIENT = logging.getLogger(LOGGER_NAME)
CLIENT_AT_FIRST = CLIENT.level, list(CLIENT.handlers)


@pytest.fixture(autouse=True)
def logs_as_at_first() -> Iterator[None]:
    """What a test, or a fixture of its module, does to the set-up of logs ends with it: the stream may be closed."""
    yield
    if structlog.get_config() != LOGS_AT_FIRST:
        structlog.configure(**LOGS_AT_FIRST)
    root = logging.getLogger()
    for handler in list(root.handlers):
        if isinstance(handler.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(handler)  # what a program put there; pytest's own stay
            root.setLevel(LEVEL_AT_FIRST)
    # A command that ran in this process has set the client's to its own: the next test would miss events.
    level, CLIENT.handlers[:] = CLIENT_AT_FIRST
    CLIENT.setLevel(level)
    for module in list(sys.modules.values()):
        logger = getattr(module, "__dict__", {}).get("log")
        if isinstance(logger, structlog._config.BoundLoggerLazyProxy):
            logger.__dict__.pop("bind", None)  # how it remembers the set-up of its first use
