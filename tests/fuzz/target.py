"""What a target is: any bytes in, nothing out, and how much of it CI runs."""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

__all__ = ["Target", "TookTooLong", "patched"]


class TookTooLong(AssertionError):
    """An input took more processor time than any input of its size may."""


@dataclass(slots=True, frozen=True)
class Target:
    """One kind of bytes.

    `run` returns for bytes that are read and for bytes that are refused in the declared way; whatever it raises is a
    finding. `seeds`: inputs to begin with, that reach far into it.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]
    runs: int  # in CI
    size_max: int = (
        256  # bytes of an input that is made up; kept inputs and seeds may be larger outside of atheris
    )
    time_max_s: float = 0.5  # processor time of one input, while its coverage is measured

    def __call__(self, data: bytes) -> None:
        """Run one input. TookTooLong when it needs more than `time_max_s`, twice."""
        begin = time.perf_counter()
        self.run(data)
        if time.perf_counter() - begin > self.time_max_s:
            # The machine may have been busy: by the clock of this thread it has to be slow, too.
            begin = time.thread_time()
            self.run(data)
            took_s = time.thread_time() - begin
            if took_s > self.time_max_s:
                raise TookTooLong(f"{took_s:.2f} s of processor time for {len(data)} bytes")


def patched(raw: bytes, patches: bytes) -> bytes:
    """`raw` with pieces of `patches` in it, each of place u16 | size u8 | bytes; places count from the end again."""
    file = bytearray(raw)
    at = 0
    while at + 3 <= len(patches) and file:
        place = int.from_bytes(patches[at : at + 2], "big") % len(file)
        size = min(patches[at + 2], len(file) - place)
        piece = patches[at + 3 : at + 3 + size]
        file[place : place + len(piece)] = piece
        at += 3 + size
    return bytes(file)
