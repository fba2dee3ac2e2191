"""What a client keeps to itself and tests look into: the one place that knows where."""

from aerobee.client import Client
from aerobee.session.session import Session

__all__ = ["session_of"]


def session_of(client: Client) -> Session:
    """What its producers and consumers share; opened by the first who asks."""
    return client._open()
