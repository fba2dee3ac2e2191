"""What is fuzzed: a target for each kind of bytes that come from a peer, a disk or a person.

    wire           what comes over a connection, and what texts in it say
    handshakes     what replicas say before they are given the log
    peers          servers that answer a client, visitors of the metrics port, records that a broker writes for itself
    files          settings, tables, users and policies
    store_files    the files of a store, one by one and together
    engines        sends in streams, as both engines take them

Each takes any bytes. It returns for bytes that are read and for bytes that are refused in the declared way; whatever
else is raised is a finding, and so is a value that does not survive being written and read again, a difference between
the fast and the careful way of a reader, and an input that takes too long.
"""

from typing import Final

from fuzz import files, handshakes, peers, store_files, wire
from fuzz.engines import engine_seeds, send_engines
from fuzz.target import Target

__all__ = ["PARTS", "TARGETS", "parts"]

TARGETS: Final[dict[str, Target]] = {
    **wire.TARGETS,
    **handshakes.TARGETS,
    **peers.TARGETS,
    **files.TARGETS,
    **store_files.TARGETS,
    "send_engines": Target(send_engines, engine_seeds, 600, 512, time_max_s=20),
}
PARTS: Final = 2  # CI runs them at the same time
# Those that take longest, each about as long as the one beside it; the others take a few seconds each.
LONGEST: Final = (
    "log_files", "configuration", "queue_files", "batch_queue_files", "timer_files", "send_engines",
)  # fmt: skip


def parts() -> list[list[str]]:
    """The names, shared out so that each part takes about as long as the others."""
    names = [*LONGEST, *(name for name in TARGETS if name not in LONGEST)]
    return [names[number::PARTS] for number in range(PARTS)]
