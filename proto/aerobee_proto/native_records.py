"""Records of an answer by the native engine, where one is installed that this release knows.

Touches  the import of `aerobee_native`, at the first call: most programs that import this package decode no records.

The engine makes records that are sound and usual. For the others it makes nothing, and they are read in Python, which
says what is wrong with them; so both say the same.
"""

from collections.abc import Callable
from importlib import import_module
from typing import Final, Protocol, TypeVar, cast

__all__ = ["INTERFACE", "MODULE", "NativeRecords", "find_decoder"]

MODULE: Final = "aerobee_native"
INTERFACE: Final = 1  # to be equal to RECORDS_INTERFACE of the module

T = TypeVar("T")


class Decoder(Protocol):
    """`aerobee_native.stored_records`."""

    def __call__(
        self, body: bytes, make: Callable[..., T], host: object, topic: object, is_checked: bool
    ) -> list[T] | None: ...


def find_decoder() -> Decoder | None:
    """The engine's; None where there is no engine, or one of another release."""
    try:
        found = import_module(MODULE)
    except ImportError:
        return None
    if getattr(found, "RECORDS_INTERFACE", None) != INTERFACE:
        return None
    return cast("Decoder", found.stored_records)


class NativeRecords:
    """The engine, looked for at the first call."""

    def __init__(self) -> None:
        self.decoder: Decoder | None = None
        self._was_looked_for = False

    def decoded(
        self, body: bytes, make: Callable[..., T], host: object, topic: object, check_crc: bool
    ) -> list[T] | None:
        """What `make` makes of the fields of each record that fills `body`; `host` and `topic` are asked for what their
        bytes mean. None when that is to be done in Python."""
        if not self._was_looked_for:
            self.decoder, self._was_looked_for = find_decoder(), True
        if self.decoder is None:
            return None
        try:
            return self.decoder(body, make, host, topic, check_crc)
        except RuntimeError:  # a fault of the engine: not used again
            self.decoder = None
            return None
