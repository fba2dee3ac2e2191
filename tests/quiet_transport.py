"""The end of a connection that is no socket: nothing holds it up, and nobody reads from it."""

import asyncio

__all__ = ["QuietTransport"]


class QuietTransport(asyncio.Transport):
    """What is written, and what closing means, is for those that derive from it."""

    def __init__(self, peer: tuple[str, int]) -> None:
        super().__init__({"peername": peer, "sockname": ("127.0.0.1", 10911)})
        self.closing = False

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return

    def pause_reading(self) -> None:
        return

    def resume_reading(self) -> None:
        return

    def is_closing(self) -> bool:
        return self.closing
