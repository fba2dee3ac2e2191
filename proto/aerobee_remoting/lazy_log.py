"""A logger that costs nothing until it is used: importing structlog takes longer than all of the client together."""

from typing import Any

__all__ = ["lazy_logger"]


class _LazyLogger:
    """Looks structlog's logger up at each call, as its settings are then."""

    def __getattr__(self, name: str) -> Any:
        import structlog

        return getattr(structlog.get_logger(), name)


def lazy_logger() -> Any:
    """What `structlog.get_logger()` gives, imported at the first call of one of its methods."""
    return _LazyLogger()
